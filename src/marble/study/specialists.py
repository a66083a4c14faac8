"""One model against many: which share of its specialist's gain a method reaches on each reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from marble.study.measure import Measured
from marble.study.statistics import over_seeds

LEAST = "least share"

Runs = dict[str, dict[int, Measured]]
"""Cell → seed → run."""


def alone(found: Measured) -> str | None:
    """The one reward that a run was trained on, if it was one."""
    shares = found.weights
    lone = [name for name in shares if shares[name] > 1 - 1e-9]
    return lone[0] if lone and len(shares) > 1 else None


def shares(runs: Runs) -> dict[str, dict[str, Any]]:
    """Cell → judged reward → gain ÷ mean gain of that reward's specialist, over seeds.

    {} without a specialist. A reward whose specialist gained nothing has no share.
    """
    return {
        cell: {name: over_seeds([one[name] for one in seeds]) for name in seeds[0]}
        for cell, seeds in _of_each_run(runs).items()
    }


def least(runs: Runs) -> dict[str, dict[str, Any]]:
    """Cell → the share of the reward that falls furthest behind its specialist, over seeds.

    {} unless every judged reward has a specialist.
    """
    found = _of_each_run(runs)
    judged = next(iter(next(iter(runs.values())).values())).judged
    if not found or any(list(one) != judged for seeds in found.values() for one in seeds):
        return {}
    return {cell: over_seeds([min(one.values()) for one in seeds]) for cell, seeds in found.items()}


def _of_each_run(runs: Runs) -> dict[str, list[dict[str, float]]]:
    """Cell → of each seed: judged reward → share. Specialists themselves have none."""
    reach: dict[str, float] = {}
    specialists = set()
    for name, seeds in runs.items():
        [reward, *others] = {alone(found) for found in seeds.values()}
        if reward is not None and not others:
            specialists.add(name)
            reach[reward] = float(np.mean([found.gains[reward] for found in seeds.values()]))
    judged = next(iter(next(iter(runs.values())).values())).judged
    known = [name for name in judged if reach.get(name, 0) > 0]
    return {
        cell: [{name: run.gains[name] / reach[name] for name in known} for run in seeds.values()]
        for cell, seeds in runs.items()
        if known and cell not in specialists
    }
