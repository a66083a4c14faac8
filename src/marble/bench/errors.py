"""How far the two loops' gradients are from each other, and from fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marble.bench.public import BATCH
from marble.bench.side import Side
from marble.bench.timing import clean

# The same samples, timesteps and noise everywhere, two timesteps, KL on all of them.

SCALE = 4 / 3
"""Another loss scale: no power of two, so that every product of the backward pass rounds anew."""


def gradient_errors(public: Side, ours: Side) -> dict[str, Any]:
    """Relative: ours by the slow path's, beside the farthest of other splits of the slow path.

    Rows of a batch do not see each other: where a smaller split takes the same kernels, every
    activation stays as it is, and only sums over samples round anew. Larger splits, up to our own
    batch, are there as far as they fit. With another loss scale, which changes nothing but
    roundings either, all of the backward pass does: two runs in bf16 are that far apart.

    `recorded`: the same direction put together from the K gradients of a refresh.
    """
    count = _count(ours)
    split = min(BATCH, count)
    sizes = {max(1, split // 3), max(1, split * 2 // 3), min(2 * split, count), count}
    first = _slow(public, count, split)
    apart: dict[str, float] = {}
    for size in sorted(sizes - {split}):
        try:
            apart[str(size)] = _error(_slow(public, count, size), first)
        except torch.OutOfMemoryError:
            clean()
    fast, recorded = _fast(ours, count, False), _fast(ours, count, True)
    return {
        "slow, another batch split": max(apart.values()),
        "slow, another loss scale": _error(_slow(public, count, split, SCALE), first),
        "fast": _error(fast, first),
        "fast, recorded": _error(recorded, first),
        "samples": count,
        "split": split,
        "errors of other splits": apart,
    }


def errors_from_fp32(reference: Side, public: Side, ours: Side) -> dict[str, float]:
    """Relative: of both loops, by the slow path with a model in fp32."""
    count = _count(ours)
    true = _slow(reference, count, reference.batch)
    return {
        "slow, from fp32": _error(_slow(public, count, min(BATCH, count)), true),
        "fast, from fp32": _error(_fast(ours, count, False), true),
        "fast, recorded, from fp32": _error(_fast(ours, count, True), true),
    }


def _count(ours: Side) -> int:
    return max(2, ours.batch)


def _slow(side: Side, count: int, split: int, scale: float = 1.0) -> Tensor:
    balancer = side.weighted_sum()
    balancer.scale = scale  # taken out of the gradient again
    side.step(balancer, pairs=2, kl=True, batch=split, samples=count)()
    return side.gradient()


def _fast(side: Side, count: int, measured: bool) -> Tensor:
    balancer = side.weighted_sum(measured=measured)
    side.step(balancer, pairs=2, kl=True, refresh=measured, samples=count)()
    return side.gradient()


def _error(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())
