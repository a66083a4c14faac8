"""Slider weights of an epoch's prompts, for a method whose rewards are to be sliders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from marble.data import Sample
from marble.harmonise import Rule, Steerable
from marble.rewards import RewardSet
from marble.rewards.guard import contained
from marble.rewards.set import applicable


def with_preferences(
    samples: list[Sample], rule: Rule, rewards: RewardSet, seed: int
) -> tuple[list[Sample], np.ndarray | None]:
    """The samples, each with its prompt's slider weights, and those weights as [K, N].

    As they are, and None, where the method has no sliders.
    """
    if not isinstance(rule, Steerable):
        return samples, None
    first = {sample.group: sample for sample in reversed(samples)}
    applies_KG = np.array([_applying(rewards, sample) for sample in first.values()]).T
    drawn_KG = rule.preferences(applies_KG, seed, list(first))
    of_group = dict(zip(first, map(tuple, drawn_KG.T.tolist())))
    preferred = [replace(sample, prefer=of_group[sample.group]) for sample in samples]
    return preferred, np.array([sample.prefer for sample in preferred]).T


def _applying(rewards: RewardSet, sample: Sample) -> np.ndarray:
    """Which rewards say that they apply to the prompt; all, where they cannot say."""
    about = {**sample.prompt.metadata, "prompt": sample.prompt.text}
    try:
        with contained():
            return np.array([applicable(reward, about) for reward in rewards.rewards])
    except Exception:  # scoring tells of it
        return np.ones(len(rewards.rewards), dtype=bool)
