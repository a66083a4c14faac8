"""Small fp64 helpers shared by the rules."""

from __future__ import annotations

from collections.abc import Sequence
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


def share_duplicates(lengths: Array, cos: Array) -> Array:
    """`lengths` of unit vectors, with identical vectors given the mean of their lengths.

    Changes nothing about the sum of the vectors; makes the answer independent of their order.
    """
    same = cos >= 1.0 - 1e-14 * len(cos)
    if np.count_nonzero(same) == len(cos):
        return lengths
    return np.asarray((same @ lengths) / same.sum(axis=1))


def spread(alpha: Array, active: Array) -> Array:
    """α with the weight of inactive rewards handed to the active ones; 0 if none is active.

    Active rewards that hold no weight between them share equally.
    """
    if not active.any():
        return np.zeros_like(alpha)
    held = np.where(active, alpha, 0.0)
    total = float(held.sum())
    return np.asarray(held / total if total > 1e-12 else active / active.sum())


def to_json(vector: Array) -> list[float | None]:
    """A list that JSON keeps exactly; NaN becomes null."""
    return [None if np.isnan(value) else float(value) for value in vector]


def from_json(values: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def nearest_cosines(cos: Array) -> Array:
    """Negative eigenvalues cut off, the diagonal back at 1; unchanged if there are none.

    Eigenvalues negative by no more than rounding count as zero.
    """
    values, vectors = np.linalg.eigh(cos)
    if values[0] >= -1e-14 * len(cos):
        return cos
    cut = (vectors * np.maximum(values, 0.0)) @ vectors.T
    scale = 1.0 / np.sqrt(np.maximum(np.diagonal(cut), np.finfo(float).tiny))
    return np.asarray(0.5 * (cut + cut.T) * np.outer(scale, scale))
