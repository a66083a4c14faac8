"""One model against many: which share of its specialist's gain a method reaches on each reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from marble.study.measure import Measured
from marble.study.statistics import over_seeds


def alone(found: Measured) -> str | None:
    """The one reward that a run was trained on, if it was one."""
    shares = found.weights
    lone = [name for name in shares if shares[name] > 1 - 1e-9]
    return lone[0] if lone and len(shares) > 1 else None


def shares(runs: dict[str, dict[int, Measured]]) -> dict[str, dict[str, Any]]:
    """Cell → judged reward → gain ÷ mean gain of that reward's specialist, over seeds.

    {} without a specialist. A reward whose specialist gained nothing has no share.
    """
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
        cell: {
            name: over_seeds([found.gains[name] / reach[name] for found in seeds.values()])
            for name in known
        }
        for cell, seeds in runs.items()
        if known and cell not in specialists
    }
