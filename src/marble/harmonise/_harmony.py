"""How well a direction serves every reward: its cosines with their gradients."""

from __future__ import annotations

import numpy as np

from ._linalg import Array

# ‖d‖² comes from the Gram matrix, so a direction shorter than about √eps of its parts is noise.
_UNRESOLVED = 1e-7
_CONFLICT = -1e-9


def direction_cosines(coefficients: Array, gram: Array) -> Array:
    """cos(d, g_k) for d = Σ c_k g_k.

    0 where g_k is zero, and everywhere if d cancels to rounding (a Pareto-stationary step):
    such a direction has no angle that a Gram matrix could tell.
    """
    norms = np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    return heldout_cosines(coefficients, gram, gram, norms)


def heldout_cosines(coefficients: Array, gram: Array, cross: Array, heldout_norms: Array) -> Array:
    """cos(d, g'_k): the direction from one half of a step, the gradients from the other.

    `gram` is g_j·g_k of the half that was solved, `cross` is g_j·g'_k (rows: solved half) and
    `heldout_norms` is ‖g'_k‖.
    """
    own_norms = np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    length = float(np.sqrt(max(float(coefficients @ gram @ coefficients), 0.0)))
    if length <= _UNRESOLVED * float(np.abs(coefficients) @ own_norms):
        return np.zeros(len(coefficients))
    inner = coefficients @ cross
    safe = np.where(heldout_norms > 0.0, heldout_norms, 1.0)
    return np.where(heldout_norms > 0.0, np.clip(inner / safe / length, -1.0, 1.0), 0.0)


def harmony(coefficients: Array, gram: Array, active: Array | None = None) -> dict[str, float]:
    """min, mean and variance of cos(d, g_k) over the rewards with a gradient, and conflict.

    `conflict` is 1.0 when some cosine is negative, so that its mean over steps is the conflict
    rate. With no reward left all are 0.
    """
    present = np.diagonal(gram) > 0.0
    return summarise(direction_cosines(coefficients, gram), _and(present, active))


def summarise(cos: Array, present: Array) -> dict[str, float]:
    chosen = cos[present]
    if len(chosen) == 0:
        return {"min": 0.0, "mean": 0.0, "var": 0.0, "conflict": 0.0}
    return {
        "min": float(chosen.min()),
        "mean": float(chosen.mean()),
        "var": float(chosen.var()),
        "conflict": float(chosen.min() < _CONFLICT),
    }


def _and(present: Array, active: Array | None) -> Array:
    return present if active is None else present & np.asarray(active, dtype=bool)
