"""What each reward gained over the base model, prompt by prompt, with an interval.

Base and trained pictures share prompt and seed, so the gain is a *paired* difference; its interval
is a bootstrap over prompts (several pictures of one prompt stay together).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marble.report.folder import Evaluation

RESAMPLES = 2000
LEVEL = 0.95

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """One reward, base against one checkpoint.

    `delta`, `lo` and `hi` are in the reward's own unit; `z` is `delta` / `spread`, in standard
    deviations of the base's pictures, so that rewards of different scales compare. `won`, `tied`
    and `lost` are shares of prompts.
    """

    name: str
    base: float
    after: float
    delta: float
    lo: float
    hi: float
    z: float
    spread: float
    won: float
    tied: float
    lost: float
    n: int

    @property
    def improved(self) -> bool:
        return self.lo > 0

    @property
    def fell(self) -> bool:
        return self.hi < 0

    @property
    def word(self) -> str:
        return "improved" if self.improved else "fell" if self.fell else "unclear"


def gains(base: Evaluation, after: Evaluation, names: Sequence[str]) -> list[Gain]:
    """The gain of each named reward; rewards that either side lacks are left out."""
    found = (_paired(base, after, name) or _unpaired(base, after, name) for name in names)
    return [gain for gain in found if gain is not None]


def bootstrap_mean(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float]:
    """Percentile interval of the mean, resampling whole clusters; fixed seed, so pages repeat."""
    index = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    sums, sizes = np.zeros(len(index)), np.zeros(len(index))
    for value, cluster in zip(values, clusters):
        sums[index[cluster]] += value
        sizes[index[cluster]] += 1
    rng = np.random.default_rng(0)
    draws = rng.multinomial(len(index), np.full(len(index), 1 / len(index)), size=RESAMPLES)
    means = (draws @ sums) / np.maximum(draws @ sizes, 1)
    lo, hi = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(lo), float(hi)


def _paired(base: Evaluation, after: Evaluation, name: str) -> Gain | None:
    before, now, prompts = [], [], []
    for i, sample in after.samples.items():
        twin = base.samples.get(i)
        if twin and name in twin.scores and name in sample.scores and twin.prompt == sample.prompt:
            before.append(twin.scores[name])
            now.append(sample.scores[name])
            prompts.append(sample.prompt)
    if not before:
        return None
    delta = np.array(now) - np.array(before)
    lo, hi = bootstrap_mean(list(delta), prompts)
    by_prompt: dict[str, list[float]] = {}
    for prompt, value in zip(prompts, delta):
        by_prompt.setdefault(prompt, []).append(float(value))
    wins = np.sign([round(float(np.mean(v)), 9) for v in by_prompt.values()])
    spread = float(np.std(before)) or float(np.std(now))
    return Gain(
        name=name,
        base=float(np.mean(before)),
        after=float(np.mean(now)),
        delta=float(delta.mean()),
        lo=lo,
        hi=hi,
        z=_standard(float(delta.mean()), spread),
        spread=spread,
        won=float(np.mean(wins > 0)),
        tied=float(np.mean(wins == 0)),
        lost=float(np.mean(wins < 0)),
        n=len(delta),
    )


def _unpaired(base: Evaluation, after: Evaluation, name: str) -> Gain | None:
    """From the two means alone, where an evaluation's pictures are gone: intervals add up."""
    if name not in base.scores or name not in after.scores:
        return None
    before, now = base.scores[name], after.scores[name]
    half = math.hypot((before.hi - before.lo) / 2, (now.hi - now.lo) / 2)
    spread = (before.hi - before.lo) / 3.92 * math.sqrt(before.n) if before.n else math.nan
    delta, nan = now.mean - before.mean, math.nan
    z = _standard(delta, spread)
    lo, hi = delta - half, delta + half
    return Gain(name, before.mean, now.mean, delta, lo, hi, z, spread, nan, nan, nan, now.n)


def _standard(delta: float, spread: float) -> float:
    return delta / spread if spread > 0 else (0.0 if delta == 0 else math.nan)
