"""Where flow-matching losses are evaluated: x_0 noised to the levels of the sampling grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from marble.data import Sample
from marble.objectives.base import Drawn, Point, Points, column


def noised(drawn: Drawn, sigmas: Tensor, *, seed: int, inner: int, count: int) -> Points:
    """x_t = (1−σ)x_0 + σε; levels and noise come from the sample's own seed."""
    levels = levels_of(drawn.samples, sigmas, seed=seed, inner=inner, count=count)

    def at(j: int, chosen: slice) -> Point:
        x_0 = drawn.latents[chosen]
        sigma = levels[j, chosen].to(x_0, non_blocking=True)
        noise = pair_noise(drawn.samples[chosen], x_0, seed, inner, j)
        s = column(sigma, x_0)
        return Point((1 - s) * x_0 + s * noise, sigma, x_0, noise)

    return at


def levels_of(
    samples: Sequence[Sample], sigmas: Tensor, *, seed: int, inner: int, count: int
) -> Tensor:
    """[count, n]: for each sample some of the sampling noise levels, none of them twice."""
    return sigmas[torch.from_numpy(steps_of(samples, len(sigmas), seed, inner, count))]


def steps_of(
    samples: Sequence[Sample], steps: int, seed: int, inner: int, count: int
) -> np.ndarray:
    """[count, n]: for each sample some of the sampling steps, in random order."""
    order = np.empty((count, len(samples)), dtype=np.int64)
    for i, sample in enumerate(samples):
        rng = np.random.default_rng([seed, sample.index, inner, 0x71])
        order[:, i] = rng.permutation(steps)[:count]
    return order


def pair_noise(samples: Sequence[Sample], like: Tensor, seed: int, inner: int, j: int) -> Tensor:
    """Noise of each (sample, timestep) pair from its own seed: the same on any process."""
    generator = torch.Generator()
    parts = []
    for sample in samples:
        key = np.random.SeedSequence([seed, sample.index, inner, j, 0x9E]).generate_state(
            1, np.uint64
        )
        generator.manual_seed(int(key[0] >> 1))
        parts.append(torch.randn(like.shape[1:], generator=generator))
    noise = torch.stack(parts)
    if like.is_cuda:  # from other memory a copy of this size waits for all that was queued before
        noise = noise.pin_memory()
    return noise.to(like, non_blocking=True)
