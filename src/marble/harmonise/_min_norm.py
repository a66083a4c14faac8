"""The exact point of minimum norm in the convex hull of K vectors, from their Gram matrix.

    α* = argmin_{α ≥ 0, Σα = 1} ‖Σ_k α_k g_k‖² = αᵀGα,   G_ij = g_i·g_j

Wolfe's active-set method in fp64: finite, and exact up to rounding, where Frank–Wolfe iterations
stop at directions that still conflict with a reward.

The problem is solved in lengths, not in weights: with C the cosines and n_k = ‖g_k‖ the unknowns
are β_k = α_k n_k / min n, and the constraint is wᵀβ = 1 with w_k = min n / n_k. So rewards whose
gradients differ by twelve orders of magnitude are as well conditioned as equal ones. The
constraint goes into the quadratic form, because

    min βᵀCβ  over β ≥ 0, wᵀβ = 1     and     min xᵀ(C + wwᵀ)x − 2wᵀx  over x ≥ 0

have the same solution up to scale (β = x / wᵀx), and C + wwᵀ stays regular where the hull
contains the origin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._active_set import FLAT, is_regular, nonneg_qp
from ._linalg import Array, cosines, nearest_cosines

# A point lies on the optimal face when its inner product is this close to ‖d‖².
_ON_FACE = 1e-11


@dataclass(frozen=True)
class MinNorm:
    """α on the simplex, its relative Frank–Wolfe gap and the indices with α > 0.

    `gap` is max_k (‖d‖² − d·g_k) / (‖g_k‖ · Σ_j α_j‖g_j‖) with d = Σ α_k g_k, floored at 0: the
    Frank–Wolfe gap in units of the rounding scale of each inner product. For unit gradients it
    is the gap itself, in units of cosines. Zero means optimal.
    """

    alpha: Array
    gap: float
    support: Array


def min_norm_point(gram: Array) -> MinNorm:
    """Exact min-norm point of the convex hull of the vectors whose Gram matrix is `gram`.

    Where the optimal α is not unique (duplicated or otherwise dependent gradients), the one of
    least Σ (α_k‖g_k‖)² is returned: duplicates share equally, and relabelling the rewards
    relabels α. A zero vector is the min-norm point by itself; several share equally.

    Gradients that differ by less than about 1e-7 of their length differ below the rounding of
    their products: there ‖d‖² and the gap are exact, while α among them is arbitrary. A matrix
    with negative eigenvalues (products of low precision) is solved with those cut off; the gap
    is that of the matrix as given, and shows it.

    >>> min_norm_point(np.array([[1.0, 0.0], [0.0, 3.0]])).alpha.round(3)
    array([0.75, 0.25])
    """
    gram = np.asarray(gram, dtype=np.float64)
    norms, cos = cosines(gram)
    zero = norms == 0.0
    if zero.any():
        return MinNorm(zero / zero.sum(), 0.0, np.flatnonzero(zero))
    w = norms.min() / norms
    # Noisy products can form a matrix that no vectors have; the active set needs a real one.
    real = cos if is_regular(cos) else nearest_cosines(cos)
    q = real + np.outer(w, w)
    x = nonneg_qp(q, w, _start(q, w))
    beta = _symmetrise(q, w, x / (w @ x), real)
    alpha = w * beta
    alpha /= alpha.sum()
    return MinNorm(
        alpha, float(_excess(cos, w, beta).max(initial=0.0)), np.flatnonzero(alpha > 0.0)
    )


def _excess(cos: Array, w: Array, beta: Array) -> Array:
    """(ν w_k − (Cβ)_k) / Σβ with ν = βᵀCβ: positive where β can be improved towards k."""
    inner = cos @ beta
    return (float(beta @ inner) * w - inner) / beta.sum()


def _start(q: Array, w: Array) -> Array:
    """The better of the shortest vector and the clipped solution without signs.

    Gradients of many parameters are close to independent, so that the second is often optimal
    or a few exchanges away from it.
    """
    shortest = np.zeros_like(w)
    shortest[np.argmax(w)] = 0.5
    if not is_regular(q):  # dependent gradients: better to build up than to take apart
        return shortest
    clipped = np.maximum(np.linalg.solve(q, w), 0.0)
    curvature = float(clipped @ q @ clipped)
    slope = float(w @ clipped)
    # Along a ray the objective falls by slope²/2·curvature; for the shortest vector by 1/4.
    return clipped * (slope / curvature) if slope * slope > 0.5 * curvature else shortest


def _symmetrise(q: Array, w: Array, beta: Array, cos: Array) -> Array:
    """The optimal β of least norm, so that ties do not depend on the order of the rewards.

    Optimal β differ only along flat directions N of the optimal face: β' = r + Nz ≥ 0 with r the
    part of β across N. The shortest such β' is a least-distance problem, again of the form
    min over u ≥ 0 (Lawson & Hanson, chapter 23): u minimises ½uᵀ(NNᵀ + rrᵀ)u + rᵀu and
    z = Nᵀu / (1 + rᵀu).
    """
    face = np.flatnonzero(_excess(cos, w, beta) >= -_ON_FACE)
    matrix = q[np.ix_(face, face)]
    if is_regular(matrix):
        return beta
    values, vectors = np.linalg.eigh(matrix)
    flat = vectors[:, values <= FLAT * len(face) * values[-1]]
    across = beta[face] - flat @ (flat.T @ beta[face])
    if across.min() < 0.0:
        u = nonneg_qp(flat @ flat.T + np.outer(across, across), -across)
        across = np.maximum(across + flat @ (flat.T @ u) / (1.0 + across @ u), 0.0)
    settled = np.zeros_like(beta)
    settled[face] = across
    settled /= w @ settled
    # Near-duplicates below rounding are a matter of opinion: never pay for symmetry with the gap.
    before, after = (float(_excess(cos, w, point).max()) for point in (beta, settled))
    return settled if after <= max(1e-14, 2.0 * before) else beta
