"""Which rewards take part in a step, for methods that choose: single, dropout, sequential."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Gate = Callable[[int], np.ndarray]
"""Optimiser step → bool [K]. A pure function of the step, so that resuming needs no state."""


def all_rewards(k: int) -> Gate:
    everyone = np.ones(k, dtype=bool)
    return lambda step: everyone


def only(k: int, chosen: int) -> Gate:
    """`single`: plain training on one reward."""
    mask = np.arange(k) == chosen
    return lambda step: mask


def dropout(k: int, rate: float, seed: int) -> Gate:
    """Each reward sits a step out with probability `rate`; when all would, one of them stays."""

    def gate(step: int) -> np.ndarray:
        rng = np.random.default_rng([seed, step, 0xD0])
        kept = rng.random(k) >= rate
        if not kept.any():
            kept[rng.integers(k)] = True
        return kept

    return gate


def stages(k: int, starts: Sequence[int], members: Sequence[Sequence[int]]) -> Gate:
    """`sequential`: from step `starts[i]` on, the rewards `members[i]`."""

    def gate(step: int) -> np.ndarray:
        stage = int(np.searchsorted(starts, step, side="right")) - 1
        return np.isin(np.arange(k), members[max(stage, 0)])

    return gate


def gate_for(method: str, k: int, seed: int) -> Gate:
    """The gate of a method when the caller gives none."""
    return dropout(k, 0.5, seed) if method == "dropout" else all_rewards(k)
