"""One optimiser step: the micro-batches of its samples and timesteps, through the balance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from marble.balance import Balancer, Batch, Plan, StepReport
from marble.models.base import Adapter
from marble.objectives import Drawn, Point


@dataclass(frozen=True)
class Part(Drawn):
    """The samples that this process brings to one optimiser step."""

    position: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """Where each sample stands in the step's batch, which holds those of all processes."""


@dataclass(frozen=True)
class Settings:
    seed: int
    batch_size: int
    pairs: int
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
    count = settings.pairs * len(starts)
    objective = balancer.objective
    plan = balancer.begin_step(batch, step, micro_batches=count, pairs=settings.pairs)
    offset = kl_offset(settings, step)
    point_at = objective.points(part, sigmas, seed=settings.seed, inner=inner, count=settings.pairs)
    # v_θ stands in for v_old where they are the same.
    same = on_policy and "old" in objective.policies
    frozen = tuple(p for p in objective.policies if not (same and p == "old"))
    number = 0
    for j in range(settings.pairs):
        for start in starts:
            chosen = slice(start, start + settings.batch_size)
            point = point_at(j, chosen)
            if settings.kl > 0 and (number + offset) % settings.kl_every == 0:
                point.kl = settings.kl * settings.kl_every
            samples = part.samples[chosen]
            with adapter.preferring([sample.prefer for sample in samples]):
                prompts = [sample.prompt.text for sample in samples]
                _micro_batch(adapter, plan, point, prompts, part.position[chosen], frozen, same)
            number += 1
    return plan.finish()


def kl_offset(settings: Settings, step: int) -> int:
    """Which micro-batch has the first KL: random, so that "every m-th, times m" is unbiased."""
    return int(np.random.default_rng([settings.seed, step, 0x4C]).integers(settings.kl_every))


def _micro_batch(
    adapter: Adapter,
    plan: Plan,
    point: Point,
    prompts: list[str],
    position: Tensor,
    frozen: tuple[str, ...],
    same: bool,
) -> None:
    for name, tensor in vars(point).items():
        if isinstance(tensor, Tensor):
            setattr(point, name, tensor.to(adapter.device))
    point.kept = {name: tensor.to(adapter.device) for name, tensor in point.kept.items()}
    cond = adapter.encode(prompts).to(adapter.device)
    with torch.no_grad():
        if "old" in frozen:
            with adapter.using("old"):
                point.v_old = adapter.velocity(point.x_t, point.t_B, cond)
        if "base" in frozen or point.kl > 0:
            with adapter.using("base"):
                point.v_ref = adapter.velocity(point.x_t, point.t_B, cond)
    with adapter.using("default"):
        with plan.recording():
            v = adapter.velocity(point.x_t, point.t_B, cond)
        if same and point.v_old is None:
            point.v_old = v.detach()
        # Still inside `using`: checkpointed blocks run their forward again during the backward.
        plan.backward(v, point, position)


def split_epoch(
    count: int, parts: int, seed: int, epoch: int, inner: int, together: int = 1
) -> Iterator[np.ndarray]:
    """The epoch's sample positions dealt to its optimiser steps, in ascending order each.

    together: so many consecutive samples go to the same step.
    """
    order = np.arange(count // together)
    if parts > 1:
        order = np.random.default_rng([seed, epoch, inner, 0xE0]).permutation(count // together)
    for part in np.array_split(order, parts):
        yield (np.sort(part)[:, None] * together + np.arange(together)).flatten()
