"""Numbers that say how several rewards fared together.

Score tables are [K, n]: K rewards, n pictures, NaN where a reward does not apply. *Before* and
*after* are the same prompts and seeds in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def composite(table_RM: ArrayLike) -> Floats:
    """Mean over metrics of column z-scores over the rows compared: [rows, metrics] → [rows].

    A metric that some row lacks, or that is the same for all, says nothing and is left out.
    """
    table = np.asarray(table_RM, dtype=np.float64)
    spread = table.std(axis=0) if len(table) else np.zeros(table.shape[1])
    useful = np.isfinite(table).all(axis=0) & (spread > 1e-12)
    if not useful.any():
        return np.zeros(len(table))
    chosen = table[:, useful]
    return np.asarray(((chosen - chosen.mean(axis=0)) / spread[useful]).mean(axis=1))


@dataclass(frozen=True)
class Joint:
    """Shares of the pictures on which at least one reward applies."""

    domination: float
    """Better than before on every applicable reward."""
    collapse: float
    """Worse than before on every applicable reward."""
    n: int


def joint_rates(after_KN: ArrayLike, before_KN: ArrayLike, tie: float = 1e-9) -> Joint:
    """How often a picture beats, or loses to, the base's picture on *every* applicable reward.

    Differences up to `tie` count as neither. A picture with one applicable reward counts too.
    """
    delta = _paired(after_KN, before_KN)
    applies = np.isfinite(delta)
    some = applies.any(axis=0)
    if not some.any():
        return Joint(np.nan, np.nan, 0)
    better = np.where(applies, delta > tie, True).all(axis=0) & some
    worse = np.where(applies, delta < -tie, True).all(axis=0) & some
    count = int(some.sum())
    return Joint(float(better.sum() / count), float(worse.sum() / count), count)


@dataclass(frozen=True)
class Wins:
    """Shares of a reward's applicable pictures."""

    won: float
    tied: float
    lost: float
    n: int


def wins(after_KN: ArrayLike, before_KN: ArrayLike, tie: float = 1e-9) -> list[Wins]:
    """For each reward: how many pictures it scores higher, the same, lower than before."""
    result = []
    for delta in _paired(after_KN, before_KN):
        delta = delta[np.isfinite(delta)]
        n = len(delta)
        shares = [float(np.mean(c)) if n else np.nan for c in (delta > tie, delta < -tie)]
        result.append(Wins(shares[0], 1 - shares[0] - shares[1], shares[1], n))
    return result


def relative_gains(after_KN: ArrayLike, before_KN: ArrayLike) -> Floats:
    """Mean paired gain of each reward in standard deviations of its scores before; [K].

    NaN for a reward that nowhere applies, or did not vary before and has moved.
    """
    before = np.asarray(before_KN, np.float64)
    gains = np.full(len(before), np.nan)
    for k, delta in enumerate(_paired(after_KN, before)):
        known = np.isfinite(delta)
        if known.any():
            gain, spread = delta[known].mean(), before[k][known].std()
            gains[k] = gain / spread if spread > 1e-12 else (0.0 if gain == 0 else np.nan)
    return gains


def worst_gain(after_KN: ArrayLike, before_KN: ArrayLike) -> tuple[int, float]:
    """Which reward gained least, and how much, in standard deviations of its scores before."""
    gains = relative_gains(after_KN, before_KN)
    if not np.isfinite(gains).any():
        return -1, float("nan")
    worst = int(np.nanargmin(gains))
    return worst, float(gains[worst])


def _paired(after: ArrayLike, before: ArrayLike) -> Floats:
    now, then = np.asarray(after, np.float64), np.asarray(before, np.float64)
    if now.shape != then.shape or now.ndim != 2:
        raise ValueError(f"score tables must be [K, n] alike, got {now.shape} and {then.shape}")
    return now - then
