"""Floors: the least cosine the direction must keep with a reward ("never degrade k").

The direction d₀ of the rule is moved as little as possible, along the gradients of the rewards
that have a floor: d = d₀ + Σ u_k ĝ_k, u ≥ 0, with cos(d, g_k) ≥ f_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._active_set import nonneg_qp
from ._linalg import Array, cosines

_SLACK = 1e-12
# A direction this short beside its parts has cancelled: no common direction is left.
_CANCELLED = 1e-7


@dataclass(frozen=True)
class Floored:
    """Weights that keep the floors, and the floors kept (NaN: none, or given up)."""

    alpha: Array
    floors: Array


def keep_floors(alpha: Array, gram: Array, floors: Array, priorities: Array) -> Floored:
    """`alpha` changed as little as possible so that cos(Σ α_k g_k, g_k) ≥ floors_k.

    If not all floors can hold at once, the least important rewards give way first: the floors of
    the lowest priority are scaled down together as little as is needed, and given up if even a
    floor of 0 leaves no common direction; then the next higher priority, and so on.
    """
    wanted = floors.copy()
    norms, cos = cosines(gram)
    weights = alpha * norms
    for level in np.unique(priorities[~np.isnan(floors)]):
        found = _solve(weights, cos, wanted)
        if found is not None:
            return Floored(found / norms, wanted)
        giving_way = ~np.isnan(floors) & (priorities == level)
        scaled = _largest_scale(weights, cos, wanted, giving_way)
        if scaled is not None:
            return Floored(scaled[0] / norms, scaled[1])
        wanted[giving_way] = np.nan
    found = _solve(weights, cos, wanted)
    return Floored(alpha if found is None else found / norms, wanted)


def _largest_scale(
    weights: Array, cos: Array, floors: Array, giving_way: Array
) -> tuple[Array, Array] | None:
    """Weights and floors with those of `giving_way` scaled by the largest factor that can hold."""

    def attempt(scale: float) -> tuple[Array | None, Array]:
        scaled = np.where(giving_way, scale * floors, floors)
        return _solve(weights, cos, scaled), scaled

    best, kept = attempt(0.0)
    if best is None:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        found, scaled = attempt(middle)
        if found is None:
            high = middle
        else:
            low, best, kept = middle, found, scaled
    assert best is not None
    return best, kept


def _solve(weights: Array, cos: Array, floors: Array) -> Array | None:
    """Weights on unit gradients that keep every floor, or None if there are none.

    For a given length τ the condition is linear, ĝ_k·d ≥ f_k τ, and the nearest d to d₀ a
    quadratic program over u. The τ that is the length of its own d is found by bisection. It
    exists exactly if the shortest d with ĝ_k·d ≥ f_k is shorter than 1.
    """
    held = np.flatnonzero(~np.isnan(floors))
    if len(held) == 0 or _kept(weights, cos, floors):
        return weights
    q = cos[np.ix_(held, held)]
    f = floors[held]
    if f.any():
        shortest = nonneg_qp(q, f)
        reached = q @ shortest
        if shortest @ reached >= 1.0 or (reached < f - 1e-9).any():
            return None
    start = cos[held] @ weights

    def corrected(tau: float) -> tuple[Array, float]:
        moved = weights.copy()
        moved[held] += nonneg_qp(q, f * tau - start)
        return moved, float(np.sqrt(max(float(moved @ cos @ moved), 0.0)))

    low, high = 0.0, float(np.abs(weights).sum())
    moved, length = corrected(low)
    if f.any():
        for _ in range(60):
            if corrected(high)[1] <= high:
                break
            low, high = high, 2.0 * high
        else:
            return None
        for _ in range(100):
            middle = 0.5 * (low + high)
            if corrected(middle)[1] > middle:
                low = middle
            else:
                high = middle
        moved, length = corrected(high)
    if length <= _CANCELLED * np.abs(moved).sum() or not _kept(moved, cos, floors):
        return None
    return moved


def _kept(weights: Array, cos: Array, floors: Array) -> bool:
    length = float(np.sqrt(max(float(weights @ cos @ weights), 0.0)))
    held = ~np.isnan(floors)
    total = float(np.abs(weights).sum())
    if length <= _CANCELLED * total:
        return False
    slack = 1e-9 * length + _SLACK * total
    return bool(((cos @ weights)[held] >= floors[held] * length - slack).all())
