"""Small fp64 helpers shared by the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def cosines(gram: Array) -> tuple[Array, Array]:
    """(‖g_k‖, C_ij = cos(g_i, g_j)); a zero gradient has cosine 0 with every other."""
    norms = np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    safe = np.where(norms > 0.0, norms, 1.0)
    # Dividing twice cannot underflow where norms are near the smallest number squared.
    cos = np.clip(gram / safe[:, None] / safe[None, :], -1.0, 1.0)
    cos = 0.5 * (cos + cos.T)
    np.fill_diagonal(cos, 1.0)
    return norms, cos


def on_simplex(weights: Array) -> Array:
    """`weights` divided by their sum, or uniform where the sum does not allow it."""
    total = weights.sum()
    scale = np.abs(weights).sum()
    if not np.isfinite(total) or total <= 1e-12 * scale or scale == 0.0:
        return np.full(len(weights), 1.0 / max(len(weights), 1))
    return weights / total
