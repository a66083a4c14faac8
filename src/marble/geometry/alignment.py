"""How a direction found on some batches stands to every reward on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marble.geometry.signal import Array

CONFLICT = -1e-9
"""A cosine below this is a conflict; above it, rounding."""


def groups_of(batches: int, size: int) -> list[Array]:
    """Disjoint groups of `size` batches; what is left over belongs to none."""
    return [np.arange(start, start + size) for start in range(0, batches - size + 1, size)]


def group_weights(valid: Array, group: Array) -> Array:
    """[B, R]: each row's mean over the batches of a group that know it."""
    chosen = np.zeros_like(valid)
    chosen[group] = valid[group]
    return np.asarray(chosen / np.maximum(chosen.sum(0), 1))


def group_gram(products: Array, weights: Array) -> Array:
    """Gram matrix [R, R] of a group's mean gradients."""
    return np.asarray(np.einsum("ai,aibj,bj->ij", weights, products, weights, optimize=True))


@dataclass(frozen=True)
class Directions:
    """G directions, each from a group of batches.

    inner_GBK: product with reward k's gradient on batch b. length_G: of the direction. own_GK: its
    cosine with the group's own mean gradients. member_GB: which batches made it.
    """

    inner_GBK: Array
    length_G: Array
    own_GK: Array
    member_GB: Array


def directions(
    inner: Array, square: Array, plain: Array, valid: Array, groups: Sequence[Array], c_GR: Array
) -> Directions:
    """Directions Σ_r c_r g_r of the groups' mean gradients, as applied in some metric M.

    inner: products under M; square: under M²; plain: under the identity. All [B, R, B, R].
    """
    k = valid.shape[1] - 2
    found, lengths, own, members = [], [], [], []
    for group, c in zip(groups, c_GR):
        weights = group_weights(valid, group)
        mix = weights * c
        with_all = np.einsum("ai,aibk->bk", mix, inner, optimize=True)
        length = float(np.einsum("ai,aibj,bj->", mix, square, mix, optimize=True))
        norms = np.sqrt(np.maximum(np.diagonal(group_gram(plain, weights)), 0.0))[:k]
        lengths.append(np.sqrt(max(length, 0.0)))
        found.append(with_all[:, :k])
        own.append(_over((weights * with_all).sum(0)[:k], norms * lengths[-1]))
        members.append(np.isin(np.arange(len(valid)), group))
    return Directions(np.array(found), np.array(lengths), np.array(own), np.array(members))


def true_alignment(d: Directions, valid: Array, norms_K: Array, index: Array) -> Array:
    """[G, K]: cosine of each direction with the true gradients, from batches it has not seen.

    The product with the mean of the other batches is unbiased; `norms_K` are the lengths of the
    true gradients. Only the batches at `index` enter; NaN for groups that have others.
    """
    allowed = np.zeros(valid.shape[0], dtype=bool)
    allowed[index] = True
    k = d.inner_GBK.shape[2]
    use = (~d.member_GB & allowed)[:, :, None] & valid[None, :, :k]
    count = use.sum(1)
    mean = np.where(use, d.inner_GBK, 0.0).sum(1) / np.where(count > 0, count, np.nan)
    cos = mean / np.where(d.length_G > 0, d.length_G, np.nan)[:, None] / norms_K
    return np.asarray(np.where((d.member_GB & ~allowed).any(1, keepdims=True), np.nan, cos))


def conflict_rates(d: Directions, valid: Array) -> tuple[float, float]:
    """How often some reward is conflicted with: on the group's own batches, on one other batch."""
    k = d.inner_GBK.shape[2]
    inside = np.nanmin(d.own_GK, axis=1) < CONFLICT
    inner = np.where(valid[None, :, :k], d.inner_GBK, np.inf).min(2)
    outside = (inner < 0)[~d.member_GB]
    return float(inside.mean()), float(outside.mean()) if outside.size else float("nan")


def _over(a: Array, b: Array) -> Array:
    return np.where(b > 0, a / np.where(b > 0, b, 1.0), np.nan)
