"""Signal and noise of gradients, from products within and across independent batches.

`products` is [B, R, B, R], `valid` is [B, R]: whether batch b knows row r at all. E[g_i^a · g_j^b]
is the product of the true gradients for a ≠ b; for a = b the noise adds to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray


def within(products: Array, valid: Array) -> Array:
    """[R, R]: mean product of two rows on one and the same batch; NaN where no batch has both."""
    both = valid[:, :, None] & valid[:, None, :]
    own = np.einsum("aiaj->aij", products)
    return _ratio(np.where(both, own, 0.0).sum(0), both.sum(0))


def across(products: Array, valid: Array) -> Array:
    """[R, R]: mean product over pairs of different batches, unbiased for the true gradients'."""
    known = valid.astype(np.float64)
    total = np.einsum("ai,aibj,bj->ij", known, products, known)
    own = np.einsum("ai,aiaj,aj->ij", known, products, known)
    pairs = known.sum(0)[:, None] * known.sum(0)[None] - known.T @ known
    matrix = _ratio(total - own, pairs)
    return 0.5 * (matrix + matrix.T)


def apparent_cosines(products: Array, valid: Array) -> Array:
    """[R, R]: the mean cosine that one batch shows."""
    own = np.einsum("aiaj->aij", products)
    norms = np.sqrt(np.maximum(np.einsum("aii->ai", own), 0.0))
    known = valid & (norms > 0)
    both = known[:, :, None] & known[:, None, :]
    scale = np.where(both, norms[:, :, None] * norms[:, None, :], 1.0)
    return _ratio(np.where(both, own / scale, 0.0).sum(0), both.sum(0))


def true_cosines(signal: Array) -> Array:
    """Cosines of the true gradients from `across`; NaN where a norm² is not positive.

    An estimate: it can lie outside [−1, 1].
    """
    norms = signal_norms(signal)
    return np.asarray(signal / norms[:, None] / norms[None, :])


def signal_norms(signal: Array) -> Array:
    """Lengths of the true gradients; NaN where the estimate of the square is not positive."""
    square = np.diagonal(signal)
    return np.sqrt(np.where(square > 0, square, np.nan))


def signal_share(signal: Array, one_batch: Array) -> Array:
    """‖true gradient‖² over the mean ‖one-batch gradient‖²; noise alone scatters about 0."""
    return _ratio(np.diagonal(signal), np.diagonal(one_batch))


def batches_for_half(share: Array) -> Array:
    """Batches to average until half of the squared norm is signal; NaN where there is none."""
    return np.where(share > 0, np.maximum(1.0 / np.where(share > 0, share, 1.0) - 1.0, 0.0), np.nan)


def jackknife(estimate: Callable[[Array], Array], batches: int) -> Array:
    """Standard error of an estimate over batches; `estimate` takes the indices that it may use."""
    everyone = np.arange(batches)
    without = np.array([estimate(np.delete(everyone, b)) for b in everyone])
    spread = (without - without.mean(0)) ** 2
    return np.asarray(np.sqrt((batches - 1) / batches * spread.sum(0)))


def subset(products: Array, index: Array) -> Array:
    """The products of some of the batches."""
    return products[index][:, :, index]


def _ratio(a: Array, b: Array) -> Array:
    return np.where(b > 0, a / np.where(b > 0, b, 1.0), np.nan)
