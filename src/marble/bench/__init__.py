"""`marble bench loop`: the loop of public code and ours, measured part by part in one run."""
