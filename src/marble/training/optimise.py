"""One optimiser step: the micro-batches of its samples and timesteps, through the balance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marble.balance import Balancer, Batch, Plan, StepReport
from marble.data import Sample
from marble.models.base import Adapter


@dataclass(frozen=True)
class Part:
    """The samples that this process brings to one optimiser step."""

    samples: list[Sample]
    latents: Tensor
    position: Tensor
    """Where each sample stands in the step's batch, which holds those of all processes."""


@dataclass(frozen=True)
class Settings:
    seed: int
    batch_size: int
    timesteps: int
    kl: float
    kl_every: int


def take_step(
    adapter: Adapter,
    balancer: Balancer,
    batch: Batch,
    part: Part,
    sigmas: Tensor,
    settings: Settings,
    *,
    step: int,
    inner: int,
    on_policy: bool = False,
) -> StepReport:
    """Leaves the step's gradient, summed over processes, in `.grad`.

    on_policy: v_old and v_θ have the same weights, so that one forward pass gives both.
    """
    starts = range(0, len(part.samples), settings.batch_size)
    count = settings.timesteps * len(starts)
    plan = balancer.begin_step(batch, step, micro_batches=count, pairs=settings.timesteps)
    offset = kl_offset(settings, step)
    levels = _levels(part.samples, sigmas, settings, inner)
    number = 0
    for j in range(settings.timesteps):
        for start in starts:
            chosen = slice(start, start + settings.batch_size)
            with_kl = settings.kl > 0 and (number + offset) % settings.kl_every == 0
            kl = settings.kl * settings.kl_every if with_kl else 0.0
            sigma = levels[j, chosen]
            _micro_batch(adapter, plan, part, chosen, sigma, settings, inner, j, kl, on_policy)
            number += 1
    return plan.finish()


def kl_offset(settings: Settings, step: int) -> int:
    """Which micro-batch has the first KL: random, so that "every m-th, times m" is unbiased."""
    return int(np.random.default_rng([settings.seed, step, 0x4C]).integers(settings.kl_every))


def _micro_batch(
    adapter: Adapter,
    plan: Plan,
    part: Part,
    chosen: slice,
    sigma: Tensor,
    settings: Settings,
    inner: int,
    j: int,
    kl: float,
    on_policy: bool,
) -> None:
    samples, x_0 = part.samples[chosen], part.latents[chosen].to(adapter.device)
    sigma = sigma.to(x_0)
    noise = pair_noise(samples, x_0, settings.seed, inner, j)
    s = sigma.view(-1, *[1] * (x_0.dim() - 1))
    x_t = (1 - s) * x_0 + s * noise
    cond = adapter.encode([sample.prompt.text for sample in samples]).to(adapter.device)
    v_old = v_ref = None
    with torch.no_grad():
        if not on_policy:
            with adapter.using("old"):
                v_old = adapter.velocity(x_t, sigma, cond)
        if kl > 0:
            with adapter.using("base"):
                v_ref = adapter.velocity(x_t, sigma, cond)
    with adapter.using("default"):
        with plan.recording():
            v = adapter.velocity(x_t, sigma, cond)
        v_old = v.detach() if v_old is None else v_old
        # Still inside `using`: checkpointed blocks run their forward again during the backward.
        plan.backward(
            v, v_old, x_t, x_0, sigma, part.position[chosen], noise=noise, v_ref=v_ref, kl=kl
        )


def _levels(samples: list[Sample], sigmas: Tensor, settings: Settings, inner: int) -> Tensor:
    """[timesteps, n]: for each sample some of the sampling noise levels, none of them twice."""
    order = np.empty((settings.timesteps, len(samples)), dtype=np.int64)
    for i, sample in enumerate(samples):
        rng = np.random.default_rng([settings.seed, sample.index, inner, 0x71])
        order[:, i] = rng.permutation(len(sigmas))[: settings.timesteps]
    return sigmas[torch.from_numpy(order)]


def pair_noise(samples: list[Sample], like: Tensor, seed: int, inner: int, j: int) -> Tensor:
    """Noise of each (sample, timestep) pair from its own seed: the same on any process."""
    generator = torch.Generator()
    parts = []
    for sample in samples:
        key = np.random.SeedSequence([seed, sample.index, inner, j, 0x9E]).generate_state(
            1, np.uint64
        )
        generator.manual_seed(int(key[0] >> 1))
        parts.append(torch.randn(like.shape[1:], generator=generator))
    return torch.stack(parts).to(like)


def split_epoch(count: int, parts: int, seed: int, epoch: int, inner: int) -> Iterator[np.ndarray]:
    """The epoch's sample positions dealt to its optimiser steps, in ascending order each."""
    order = np.arange(count)
    if parts > 1:
        order = np.random.default_rng([seed, epoch, inner, 0xE0]).permutation(count)
    for part in np.array_split(order, parts):
        yield np.sort(part)
