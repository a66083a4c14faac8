"""Prompts to train on, made from templates, in the layouts of the public data sets."""

from marble.prompts.write import KINDS, Written, write_prompts

__all__ = ["KINDS", "Written", "write_prompts"]
