"""The loop, its checkpoints, its distribution over processes and what it writes."""
