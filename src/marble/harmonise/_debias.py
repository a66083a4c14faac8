"""Norms and cosines without the bias of noise.

A gradient from one batch is g + noise. Its squared norm is ‖g‖² plus the noise's, so noise makes
norms too long and cosines too small, most of all for sparse rewards. Products of gradients from
*independent* parts of the step (halves of the micro-batches, ranks) have no such bias:
E[g_i^(a) · g_j^(b)] = g_i · g_j for a ≠ b.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marble.errors import MarbleError

from ._linalg import Array, nearest_cosines


def debiased_gram(cross_blocks: Any, *, floor: float = 0.05) -> Array:
    """Gram matrix of the true gradients from products across H ≥ 2 independent parts.

    cross_blocks: [H, H, K, K] with [a, b, i, j] = g_i^(a) · g_j^(b), each part's gradient being a
        *mean* over its own samples. Only a ≠ b enters the estimate; a = b gives the plain norm
        of the step's mean gradient, to compare with.
    floor: a debiased ‖g_k‖² below `floor` times the plain one (it can be negative) is raised to
        that: a reward whose signal cannot be told from noise is neither dropped nor blown up by
        more than 1/√floor. The cosines keep their sign, are limited to [−1, 1] and moved to the
        nearest matrix that real vectors can have.
    A reward whose plain norm is 0 keeps 0.
    """
    blocks = np.array(cross_blocks, dtype=np.float64)
    if blocks.ndim != 4 or blocks.shape[0] != blocks.shape[1] or blocks.shape[2] != blocks.shape[3]:
        raise MarbleError(f"cross_blocks must be [H, H, K, K], got shape {blocks.shape}.")
    parts = blocks.shape[0]
    if parts < 2:
        raise MarbleError("debiased_gram needs gradients of at least 2 independent parts.")
    if not 0.0 < floor <= 1.0:
        raise MarbleError(f"floor = {floor}: give a number in (0, 1].")
    if not np.isfinite(blocks).all():
        bad = np.flatnonzero(~np.isfinite(blocks).all(axis=(0, 1, 3)))
        raise MarbleError(
            f"cross_blocks is not finite for reward number {', '.join(map(str, bad))}."
        )
    plain = np.diagonal(blocks.mean(axis=(0, 1)))
    apart = blocks[~np.eye(parts, dtype=bool)].mean(axis=0)
    apart = 0.5 * (apart + apart.T)
    present = plain > 0.0
    signal = np.where(present, np.diagonal(apart) / np.where(present, plain, 1.0), 0.0)
    norms = np.sqrt(np.maximum(signal, floor) * np.maximum(plain, 0.0))
    safe = np.where(present, norms, 1.0)
    cos = np.clip(apart / safe[:, None] / safe[None, :], -1.0, 1.0)
    np.fill_diagonal(cos, 1.0)
    cos = nearest_cosines(np.where(np.outer(present, present), cos, np.eye(len(cos))))
    return np.asarray(cos * np.outer(norms, norms))
