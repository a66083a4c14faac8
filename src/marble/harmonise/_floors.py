"""Floors: the least cosine the direction must keep with a reward ("never degrade k").

The direction d₀ of the rule is moved as little as possible, along the gradients of the rewards
that have a floor: d = d₀ + Σ u_k ĝ_k, u ≥ 0, with cos(d, g_k) ≥ f_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._active_set import nonneg_qp
from ._linalg import Array, cosines

_SLACK = 1e-9
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
    norms, cos = cosines(gram)
    weights = alpha * norms
    kept = floors.copy()
    for level in np.unique(priorities[~np.isnan(floors)]):
        found = _solve(weights, cos, kept)
        if found is not None:
            return Floored(found / norms, kept)
        giving_way = ~np.isnan(floors) & (priorities == level)
        kept = _scale_down(cos, kept, giving_way)
        found = _solve(weights, cos, kept)
        if found is not None:
            return Floored(found / norms, kept)
        kept[giving_way] = np.nan
    found = _solve(weights, cos, kept)
    return Floored(alpha if found is None else found / norms, kept)


def _scale_down(cos: Array, floors: Array, giving_way: Array) -> Array:
    """`floors` with those of `giving_way` times the largest factor in [0, 1] that can hold."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        scaled = np.where(giving_way, middle * floors, floors)
        low, high = (middle, high) if _shortest(cos, scaled)[1] <= 1.0 else (low, middle)
    return np.where(giving_way, low * floors, floors)


def _shortest(cos: Array, floors: Array) -> tuple[Array, float]:
    """Weights of the shortest d with ĝ_k·d ≥ f_k, and its squared length (inf: there is none).

    A direction with cos(d, g_k) ≥ f_k exists exactly if that length is at most 1.
    """
    held = np.flatnonzero(~np.isnan(floors))
    q, f = cos[np.ix_(held, held)], floors[held]
    weights = np.zeros(len(cos))
    weights[held] = nonneg_qp(q, f)
    reached = q @ weights[held]
    if (reached < f - _SLACK).any():
        return weights, np.inf
    return weights, float(weights[held] @ reached)


def _solve(weights: Array, cos: Array, floors: Array) -> Array | None:
    """Weights on unit gradients that keep every floor, or None if there are none.

    For a given length τ the condition is linear, ĝ_k·d ≥ f_k τ, and the nearest d to d₀ a
    quadratic program over u. Bisection finds the τ that is the length of its own d.
    """
    held = np.flatnonzero(~np.isnan(floors))
    if len(held) == 0 or _holds(weights, cos, floors):
        return weights
    shortest, squared = _shortest(cos, floors)
    if squared > 1.0:
        return None
    if squared > 1.0 - 1e-6:  # hardly any other direction is left
        return shortest if _holds(shortest, cos, floors) else None
    if _length(weights, cos) <= _CANCELLED * np.abs(weights).sum():
        # d₀ has cancelled, so that every direction is as near as any other: take the shortest.
        moved = weights + shortest
        return moved if _holds(moved, cos, floors) else None
    q, f, inner = cos[np.ix_(held, held)], floors[held], cos[held] @ weights

    def nearest(tau: float) -> Array:
        moved = weights.copy()
        moved[held] += nonneg_qp(q, f * tau - inner)
        return moved

    moved = nearest(0.0)
    if f.any():
        low, high = 0.0, float(np.abs(weights).sum())
        while _length(nearest(high), cos) > high:
            low, high = high, 2.0 * high
        for _ in range(60):
            tau = 0.5 * (low + high)
            low, high = (tau, high) if _length(nearest(tau), cos) > tau else (low, tau)
        moved = nearest(high)
    return moved if _holds(moved, cos, floors) else None


def _length(weights: Array, cos: Array) -> float:
    return float(np.sqrt(max(float(weights @ cos @ weights), 0.0)))


def _holds(weights: Array, cos: Array, floors: Array) -> bool:
    length = _length(weights, cos)
    if length <= _CANCELLED * np.abs(weights).sum():
        return False
    held = ~np.isnan(floors)
    return bool(((cos @ weights)[held] / length >= floors[held] - _SLACK).all())
