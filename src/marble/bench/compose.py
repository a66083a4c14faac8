"""Whole steps from the milliseconds of their parts: how often each part comes in a step.

A step of the published recipe takes half an hour on one GPU; its parts take a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

Parts = Mapping[str, float]
"""Milliseconds of one call, by part; see `step`."""


@dataclass(frozen=True)
class Counts:
    """What a step of a recipe is made of, on one GPU."""

    pictures: int
    sampling_steps: int
    rollout_batch: int
    pairs: int
    """Timesteps trained on per picture."""
    batch: int
    """Micro-batch."""
    kl_every: int
    """0: no KL."""
    recorded: float
    """Share of a refresh step's micro-batches that are recorded."""

    @property
    def micro_batches(self) -> int:
        return self.pairs * ceil(self.pictures / self.batch)

    def recorded_of(self) -> int:
        return max(1, ceil(self.recorded * self.micro_batches - 1e-9))


def step(parts: Parts, counts: Counts, *, refresh: bool) -> dict[str, float]:
    """Milliseconds of a step by phase.

    parts: `sampling` (one step of the sampling batch), `decoding` (the sampling batch), `plain` (a
    micro-batch without KL), `kl` (with), `recorded`, `solve` (what a refresh adds once), `update`
    (optimiser and averages), `merge` (once per rollout).
    """
    batches = ceil(counts.pictures / counts.rollout_batch)
    recorded = counts.recorded_of() if refresh else 0
    free = counts.micro_batches - recorded
    with_kl = free / counts.kl_every if counts.kl_every else 0.0
    phases = {
        "sampling": batches * counts.sampling_steps * parts["sampling"] + parts.get("merge", 0.0),
        "decoding": batches * parts["decoding"],
        "training": with_kl * parts["kl"] + (free - with_kl) * parts["plain"],
    }
    if refresh:
        phases["recorded"] = recorded * parts["recorded"]
        phases["solve"] = parts["solve"]
    phases["update"] = parts["update"]
    return phases


def mean_step(ordinary: Parts, refresh: Parts, every: int) -> dict[str, float]:
    """Per step of `every`, of which one is a refresh."""
    keys = [*ordinary, *(k for k in refresh if k not in ordinary)]
    return {k: ((every - 1) * ordinary.get(k, 0.0) + refresh.get(k, 0.0)) / every for k in keys}


def training_of(phases: Parts) -> float:
    """All of a step but drawing its pictures."""
    return sum(ms for name, ms in phases.items() if name not in ("sampling", "decoding"))


def speed(phases: Parts, pictures: int, reward_seconds: float) -> dict[str, Any]:
    """Pictures per GPU-second: pictures ÷ (seconds of a step × GPUs)."""
    seconds = sum(phases.values()) / 1e3
    return {
        "seconds_per_step": seconds,
        "pictures_per_gpu_second": pictures / seconds,
        "pictures_per_gpu_second_with_rewards": pictures / (seconds + pictures * reward_seconds),
        "ms_per_picture": {name: ms / pictures for name, ms in phases.items()},
    }
