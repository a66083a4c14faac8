"""Bootstrap intervals over prompts, seeded, so that a table printed twice is the same table.

Pictures of one prompt are alike, so prompts are resampled, not pictures: with n_c pictures of sum
s_c in cluster c, a resample's mean is Σ s_c / Σ n_c over the clusters drawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values and its percentile interval; all NaN without values."""

    mean: float
    lo: float
    hi: float
    n: int

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is: an improvement, where the value is a gain."""
        return self.lo > 0

    @property
    def below_zero(self) -> bool:
        return self.hi < 0

    def record(self) -> dict[str, float | int | None]:
        """For JSON: None where there is no number."""
        figures = {"mean": self.mean, "lo": self.lo, "hi": self.hi}
        return {**{k: v if np.isfinite(v) else None for k, v in figures.items()}, "n": self.n}


def mean_interval(
    values: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Mean of the finite values with its bootstrap interval; `clusters` names each one's prompt."""
    array = np.asarray(values, dtype=np.float64)
    if clusters is not None and len(clusters) != len(array):
        raise ValueError(f"{len(clusters)} clusters for {len(array)} values")
    known = np.isfinite(array)
    if not known.any():
        return Interval(np.nan, np.nan, np.nan, 0)
    names = range(len(array)) if clusters is None else clusters
    sums, sizes = _by_cluster(array[known], [name for name, k in zip(names, known) if k])
    draws = _draws(len(sums), resamples, seed)
    means = (draws @ sums) / (draws @ sizes)
    lo, hi = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(array[known].mean()), float(lo), float(hi), int(known.sum()))


def gain_interval(
    after: ArrayLike,
    before: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Interval of the paired gain: the same prompts and seeds before and after, in one order."""
    now, then = np.asarray(after, np.float64), np.asarray(before, np.float64)
    if now.shape != then.shape:
        raise ValueError(f"{now.shape} scores after, {then.shape} before: not the same pictures")
    return mean_interval(now - then, clusters, level=level, resamples=resamples, seed=seed)


@lru_cache(maxsize=4)
def _draws(count: int, resamples: int, seed: int) -> Floats:
    """How often each of so many clusters is drawn, by resample. Remembered: a page has hundreds of
    intervals over the same prompts, and drawing takes longest."""
    chances = np.full(count, 1 / count)
    drawn = np.random.default_rng(seed).multinomial(count, chances, size=resamples).astype(float)
    drawn.setflags(write=False)
    return drawn


def _by_cluster(values: Floats, names: Sequence[Hashable]) -> tuple[Floats, Floats]:
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    where = [index[name] for name in names]
    sizes = np.bincount(where, minlength=len(index)).astype(np.float64)
    sums = np.bincount(where, weights=values, minlength=len(index)).astype(np.float64)
    return sums, sizes
