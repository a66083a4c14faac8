"""Prompt sources and the sampling of prompt groups."""

from marble.data.prompts import MAX_PROMPT, Prompt, load_prompts, studio_sources, text_problem
from marble.data.sampler import GroupSampler, Sample, held_out, sample_seed

__all__ = [
    "MAX_PROMPT",
    "GroupSampler",
    "Prompt",
    "Sample",
    "held_out",
    "load_prompts",
    "sample_seed",
    "studio_sources",
    "text_problem",
]
