"""What a rule's direction is worth to every reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from marble.geometry import alignment as at
from marble.geometry import signal as sig
from marble.geometry.measured import Measured
from marble.geometry.products import Metrics
from marble.geometry.rules import Candidate
from marble.geometry.signal import Array
from marble.harmonise import debiased_gram


def rule(m: Measured, candidate: Candidate) -> dict[str, Any]:
    """A rule on 1, 2, 4, … batches averaged, and on the true gradients."""
    sizes = [2**i for i in range(m.batches.bit_length()) if 2**i <= m.batches]
    return {
        "solved_in": candidate.metric,
        "averaged": {str(n): _averaged(m, candidate, n) for n in sizes},
        "limit": _limit(m, candidate),
    }


def _averaged(m: Measured, candidate: Candidate, size: int) -> dict[str, Any]:
    """The rule on groups of `size` batches: its weights and, where batches are left, its worth."""
    groups = at.groups_of(m.batches, size)
    products = m.metrics.adam if candidate.metric == "adam" else m.metrics.plain
    assert products is not None
    solved = []
    for group in groups:
        gram = at.group_gram(products, at.group_weights(m.valid_BR, group))[: m.k, : m.k]
        solved.append(candidate.solve(gram, m.active_BK[group].any(0)))
    alpha, c = (np.array(part) for part in zip(*solved))
    result: dict[str, Any] = {"groups": len(groups)}
    if candidate.rule is not None:
        share = c[:, : m.k] / np.maximum(c[:, : m.k].sum(1, keepdims=True), 1e-300)
        result["alpha"] = _spread(m.names, alpha)
        result["coefficient"] = _spread(m.names, share)
    if size < m.batches:
        c_GR = np.column_stack([c, np.full(len(c), m.outside)])
        result |= {name: _worth(m, groups, c_GR, *p) for name, p in _applied(m.metrics).items()}
    return result


def _applied(metrics: Metrics) -> dict[str, tuple[Array, Array]]:
    """A direction as it is, and through Adam: products with g_k, and for its squared length."""
    ways = {"plain": (metrics.plain, metrics.plain)}
    if metrics.adam is not None and metrics.squared is not None:
        ways["adam"] = (metrics.adam, metrics.squared)
    return ways


def _worth(
    m: Measured, groups: list[Array], c_GR: Array, inner: Array, square: Array
) -> dict[str, Any]:
    """Cosines with the rewards' true gradients, and conflicts, of directions as applied."""
    d = at.directions(inner, square, m.metrics.plain, m.valid_BR, groups, c_GR)

    def per_group(index: Array) -> Array:
        return at.true_alignment(d, m.valid_BR, m.true_norms(index), index)

    def estimate(index: Array) -> Array:
        mean = _nan(np.nanmean, per_group(index))
        return np.append(mean, [_nan(np.nanmin, mean), _nan(np.nanmean, mean)])

    def progress(index: Array) -> Array:
        cos = at.true_alignment(d, m.valid_BR, m.one_batch_norms(index), index)
        return np.asarray(_nan(np.nanmean, cos))

    everyone = np.arange(m.batches)
    cos = per_group(everyone)
    found, error = estimate(everyone), sig.jackknife(estimate, m.batches)
    inside, outside = at.conflict_rates(d, m.valid_BR)
    worst = _nan(np.nanmin, cos, axis=1)
    known = np.isfinite(found[: m.k])
    return {
        "cosine": dict(zip(m.names, found[: m.k])),
        "cosine_error": dict(zip(m.names, error[: m.k])),
        "cosine_spread": dict(zip(m.names, _nan(np.nanstd, cos))),
        "progress": dict(zip(m.names, progress(everyone))),
        "progress_error": dict(zip(m.names, sig.jackknife(progress, m.batches))),
        "worst": found[-2],
        "worst_error": error[-2],
        "worst_reward": m.names[int(np.nanargmin(found[: m.k]))] if known.any() else None,
        "mean": found[-1],
        "mean_error": error[-1],
        "mean_of_worst": _nan(np.nanmean, worst, axis=0),
        "negative": dict(zip(m.names, np.where(known, (cos < 0).mean(0), np.nan))),
        "conflict_true": float((worst < 0).mean()),
        "conflict_in_batch": inside,
        "conflict_out_of_batch": outside,
    }


def _limit(m: Measured, candidate: Candidate) -> dict[str, Any]:
    """The rule on the true gradients: what batches without noise would give."""
    products = m.metrics.adam if candidate.metric == "adam" else m.metrics.plain
    assert products is not None
    gram = _true_gram(products, m)
    alpha, c = candidate.solve(gram, np.asarray(m.active_BK.any(0)))
    c_R = np.append(c, m.outside)
    norms = m.true_norms()
    result: dict[str, Any] = {}
    if candidate.rule is not None:
        result["alpha"] = dict(zip(m.names, alpha))
        result["coefficient"] = dict(zip(m.names, c[: m.k] / max(c[: m.k].sum(), 1e-300)))
    for name, (inner, square) in _applied(m.metrics).items():
        length2 = float(c_R @ sig.across(square, m.valid_BR) @ c_R)
        length = np.sqrt(length2) if length2 > 0 else np.nan
        cos = np.clip((c_R @ sig.across(inner, m.valid_BR))[: m.k] / norms / length, -1.0, 1.0)
        result[name] = {
            "cosine": dict(zip(m.names, cos)),
            "worst": _nan(np.nanmin, cos),
            "mean": _nan(np.nanmean, cos),
        }
    return result


def _true_gram(products: Array, m: Measured) -> Array:
    """Gram matrix of the true gradients, made one that real vectors can have."""
    signal = sig.across(products, m.valid_BR)[: m.k, : m.k]
    one = sig.within(products, m.valid_BR)[: m.k, : m.k]
    averaged = signal + (one - signal) / m.batches
    own = 2 * averaged - signal  # so that the plain norm is that of the mean over all batches
    blocks = np.nan_to_num(np.array([[own, signal], [signal, own]]))
    return debiased_gram(blocks)


def _spread(names: list[str], values_GK: Array) -> dict[str, Any]:
    several = len(values_GK) > 1
    return {
        "mean": dict(zip(names, values_GK.mean(0))),
        "std": dict(
            zip(names, values_GK.std(0, ddof=1) if several else np.full(len(names), np.nan))
        ),
    }


def _nan(reduce: Any, values: Array, axis: int = 0) -> Any:
    """A reduction over what is known; NaN where nothing is, without a warning."""
    values = np.asarray(values, dtype=np.float64)
    nothing = np.isnan(values).all(axis=axis)
    safe = np.where(np.expand_dims(nothing, axis), 0.0, values)
    return np.where(nothing, np.nan, reduce(safe, axis=axis))
