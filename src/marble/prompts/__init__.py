"""Prompts to train on, made from templates, in the layouts of the public data sets."""

from marble.prompts.write import GENERAL, KINDS, Written, write_prompts

__all__ = ["GENERAL", "KINDS", "Written", "write_prompts"]
