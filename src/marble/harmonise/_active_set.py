"""The one primitive under every rule: a quadratic program over x ≥ 0, solved exactly.

    minimise ½ xᵀQx − bᵀx   over x ≥ 0,   Q positive semi-definite, b in its range

An active-set method in the manner of Wolfe (1976) and Lawson & Hanson (1974), on the matrix Q
itself. Finite, and exact up to rounding.
"""

from __future__ import annotations

import numpy as np

from ._linalg import Array

# A coordinate enters while its gradient exceeds this many times its rounding scale.
_TOLERANCE = 1e-15
# Eigenvalues below this, relative to the largest and per row, are rounding of the matrix.
FLAT = 1e-14


def nonneg_qp(q: Array, b: Array, start: Array | None = None) -> Array:
    """argmin ½ xᵀQx − bᵀx over x ≥ 0.

    `start` is any x ≥ 0 to begin from; a good one saves exchanges and changes nothing else.
    """
    x = np.zeros(len(b)) if start is None else np.maximum(start, 0.0)
    if (x > 0.0).any():
        x = _settle(q, b, x, x > 0.0)
    best, best_slope = x, np.inf
    # Every exchange lowers the objective, so no support returns. Near the optimum the fall is
    # below rounding: there a support that does return ends the attempts along that coordinate.
    supports = {(x > 0.0).tobytes()}
    refused = np.zeros(len(b), dtype=bool)
    for _ in range(8 * len(b) + 16):
        slope = (b - q @ x) / (np.abs(b) + np.abs(q) @ x + np.finfo(float).tiny)
        if slope.max() < best_slope:
            best, best_slope = x, float(slope.max())
        inside = x > 0.0
        slope[inside | refused] = -np.inf
        entering = int(np.argmax(slope))
        if slope[entering] <= _TOLERANCE:
            break
        inside[entering] = True
        candidate = _settle(q, b, x, inside)
        support = (candidate > 0.0).tobytes()
        if support in supports:
            refused[entering] = True
            continue
        supports.add(support)
        refused[:] = False
        x = candidate
    return best


def is_regular(q: Array) -> bool:
    """Whether a matrix of cosines is positive definite beyond rounding."""
    try:
        np.linalg.cholesky(q - 4.0 * FLAT * len(q) * np.eye(len(q)))
    except np.linalg.LinAlgError:
        return False
    return True


def _settle(q: Array, b: Array, x: Array, inside: Array) -> Array:
    """Walk from x to the minimiser on `inside`, dropping coordinates that would turn negative."""
    inside = inside.copy()
    while inside.any():
        index = np.flatnonzero(inside)
        here = x[index]
        there = _minimiser(q[np.ix_(index, index)], b[index], here)
        falling = there <= 0.0
        if not falling.any():
            x = np.zeros_like(x)
            x[index] = there
            return x
        # Coordinates at 0 that would fall leave at once; otherwise go as far as signs allow.
        moving = falling & (here > 0.0)
        room = np.where(falling, 0.0, np.inf)
        room[moving] = here[moving] / (here - there)[moving]
        step = float(room.min())
        leaving = index[room <= step]
        x = x.copy()
        x[index] = np.maximum(here + step * (there - here), 0.0)
        x[leaving] = 0.0
        inside[leaving] = False
    return np.zeros_like(x)


def _minimiser(q: Array, b: Array, x: Array) -> Array:
    """Where to go from x if signs did not matter: the minimiser of ½yᵀQy − bᵀy.

    The size of one step of iterative refinement tells whether Q is singular to working precision
    (near-duplicated rewards). Then the objective is linear along the flat directions: if it falls
    there, follow it beyond the first sign change; if not, keep x's part in them.
    """
    try:
        y = np.linalg.solve(q, b)
        correction = np.linalg.solve(q, b - q @ y)
        if np.abs(correction).max() <= 1e-5 * np.abs(y).max():
            return np.asarray(y + correction)
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(q)
    is_flat = values <= FLAT * len(b) * max(values[-1], np.finfo(float).tiny)
    flat, rest = vectors[:, is_flat], vectors[:, ~is_flat]
    slope = b - q @ x
    ray = flat @ (flat.T @ slope)
    if np.abs(ray).max() > 1e-15 * float((np.abs(b) + np.abs(q) @ x).max()) and ray.min() < 0.0:
        shrinking = ray < 0.0
        return np.asarray(x + 2.0 * ray * float((x[shrinking] / -ray[shrinking]).max() + 1.0))
    return np.asarray(rest @ ((rest.T @ b) / values[~is_flat]) + flat @ (flat.T @ x))
