"""The one primitive under every rule: a quadratic program over x ≥ 0, solved exactly.

    minimise ½ xᵀQx − bᵀx   over x ≥ 0,   Q positive semi-definite, b in its range

An active-set method in the manner of Wolfe (1976) and Lawson & Hanson (1974), on the matrix Q
itself. Finite, and exact up to rounding.
"""

from __future__ import annotations

import numpy as np

from ._linalg import Array

# A coordinate enters while its gradient exceeds this many times its rounding scale.
_TOLERANCE = 1e-14


def nonneg_qp(q: Array, b: Array, start: Array | None = None) -> Array:
    """argmin ½ xᵀQx − bᵀx over x ≥ 0.

    `start` is any x ≥ 0 to begin from; a good one saves exchanges and changes nothing else.
    """
    x = np.zeros(len(b)) if start is None else np.maximum(start, 0.0)
    if (x > 0.0).any():
        x = _settle(q, b, x, x > 0.0)
    value, best = _objective(q, b, x), x
    refused = np.zeros(len(b), dtype=bool)
    for _ in range(8 * len(b) + 16):
        slope = (b - q @ x) / (np.abs(b) + np.abs(q) @ x + np.finfo(float).tiny)
        slope[(x > 0.0) | refused] = -np.inf
        entering = int(np.argmax(slope))
        if slope[entering] <= _TOLERANCE * len(b):
            break
        inside = x > 0.0
        inside[entering] = True
        candidate = _settle(q, b, x, inside)
        new_value = _objective(q, b, candidate)
        if candidate[entering] <= 0.0 or new_value > value:
            # Rounding says there is nothing to gain along this coordinate; do not try it again
            # until some other exchange has succeeded.
            refused[entering] = True
            continue
        refused[:] = False
        x, value = candidate, new_value
        best = x
    return best


def _objective(q: Array, b: Array, x: Array) -> float:
    return float(0.5 * x @ q @ x - b @ x)


def _settle(q: Array, b: Array, x: Array, inside: Array) -> Array:
    """Walk from x to the minimiser on `inside`, dropping coordinates that would turn negative."""
    inside = inside.copy()
    while True:
        index = np.flatnonzero(inside)
        target = np.zeros_like(x)
        if len(index) == 0:
            return target
        target[index] = _solve(q[np.ix_(index, index)], b[index])
        blocking = index[target[index] <= 0.0]
        if len(blocking) == 0:
            return target
        gone = blocking[x[blocking] == 0.0]
        if len(gone) == 0:
            ratio = x[blocking] / (x[blocking] - target[blocking])
            step = float(ratio.min())
            x = np.maximum((1.0 - step) * x + step * target, 0.0)
            gone = blocking[ratio <= step]
        x = x.copy()
        x[gone] = 0.0
        inside[gone] = False


def _solve(matrix: Array, rhs: Array) -> Array:
    """matrix⁻¹ rhs with one step of refinement; least squares where the matrix is singular."""
    try:
        y = np.linalg.solve(matrix, rhs)
        y += np.linalg.solve(matrix, rhs - matrix @ y)
    except np.linalg.LinAlgError:
        y = np.full(len(rhs), np.nan)
    if not np.isfinite(y).all():
        y = np.linalg.lstsq(matrix, rhs, rcond=None)[0]
    return y
