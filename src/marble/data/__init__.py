"""Prompt sources and the sampling of prompt groups."""

from marble.data.prompts import Prompt, load_prompts, studio_sources
from marble.data.sampler import GroupSampler, Sample, held_out, sample_seed

__all__ = [
    "GroupSampler",
    "Prompt",
    "Sample",
    "held_out",
    "load_prompts",
    "sample_seed",
    "studio_sources",
]
