"""Which rewards take part in a step, for methods whose caller chooses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marble.harmonise import Gate


def all_rewards(k: int) -> Gate:
    everyone = np.ones(k, dtype=bool)
    return lambda step: everyone


def only(k: int, chosen: int) -> Gate:
    """Plain training on one reward."""
    mask = np.arange(k) == chosen
    return lambda step: mask


def stages(k: int, starts: Sequence[int], members: Sequence[Sequence[int]]) -> Gate:
    """From step `starts[i]` on, the rewards `members[i]`."""

    def gate(step: int) -> np.ndarray:
        stage = int(np.searchsorted(starts, step, side="right")) - 1
        return np.isin(np.arange(k), members[max(stage, 0)])

    return gate
