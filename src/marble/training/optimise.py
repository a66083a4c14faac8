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
from marble.training.teachers import taught_velocity, teachers_of

SMALLEST = 8
"""Samples of half a micro-batch; fewer leave a GPU waiting for its host."""


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
    size = settings.batch_size
    starts = range(0, len(part.samples), size)
    order = [(j, slice(start, start + size)) for j in range(settings.pairs) for start in starts]
    objective = balancer.objective
    plan = balancer.begin_step(batch, step, micro_batches=len(order), pairs=settings.pairs)
    recorded = plan.recorded
    if 0 < recorded < len(order):
        turn = first_recorded(settings, step, len(order))
        order = order[turn:] + order[:turn]
    kl = kl_weights(settings, step, len(order), recorded)
    if recorded and adapter.halves:
        pieces = [halves(at, len(part.samples)) for at in order[:recorded]]
        kl = [w for w, parts in zip(kl, pieces) for _ in parts] + kl[recorded:]
        order = [piece for parts in pieces for piece in parts] + order[recorded:]
        plan.record_first(sum(len(parts) for parts in pieces))
    point_at = objective.points(part, sigmas, seed=settings.seed, inner=inner, count=settings.pairs)
    # v_θ stands in for v_old where they are the same.
    same = on_policy and "old" in objective.policies
    frozen = tuple(p for p in objective.policies if not (same and p == "old"))
    taught = teachers_of(batch, part.position, balancer) if objective.teachers else []
    for (j, at), weight in zip(order, kl):
        point = point_at(j, at)
        point.kl = weight
        samples = part.samples[at]
        prompts = [sample.prompt.text for sample in samples]
        with adapter.preferring([sample.prefer for sample in samples]):
            position, anchor = part.position[at], objective.anchor
            _micro_batch(adapter, plan, point, prompts, position, frozen, same, anchor, taught[at])
    return plan.finish()


def halves(at: tuple[int, slice], count: int) -> list[tuple[int, slice]]:
    """A micro-batch in two, of at least `SMALLEST` samples each, or as it is.

    A recorded pass keeps its graph for a second backward: with half of the samples a refresh needs
    no more memory than other steps do.
    """
    j, chosen = at
    start, stop = chosen.start, min(chosen.stop, count)
    if stop - start < 2 * SMALLEST:
        return [at]
    middle = start + (stop - start) // 2 // 2 * 2  # pairs of samples stay together
    return [(j, slice(start, middle)), (j, slice(middle, stop))]


def first_recorded(settings: Settings, step: int, count: int) -> int:
    """Where a refresh step begins that records only part of its `count` micro-batches.

    Micro-batches follow each other in a circle, all samples at one timestep, then at the next.
    With a random beginning each is as likely as any other to be recorded, and any run of them
    has the samples almost equally often.
    """
    return int(np.random.default_rng([settings.seed, step, 0x4D]).integers(count))


def kl_offset(settings: Settings, step: int) -> int:
    """Which micro-batch has the first KL: random, so that "every m-th, times m" is unbiased."""
    return int(np.random.default_rng([settings.seed, step, 0x4C]).integers(settings.kl_every))


def kl_weights(settings: Settings, step: int, count: int, recorded: int) -> list[float]:
    """The KL's weight in each of a step's micro-batches, in the order they are taken; 0: none.

    On a recorded micro-batch, of which the first `recorded` are, it would cost a backward pass of
    its own. The others carry it for these, so much the heavier: which are recorded is random, and
    the expectation is that of the KL on every micro-batch. Where all are recorded, all have it.
    """
    free = count - recorded if recorded < count else count
    every, offset = settings.kl_every, kl_offset(settings, step)
    weight = settings.kl * every * (count / free if free else 1.0)
    chosen = [weight if (n + offset) % every == 0 else 0.0 for n in range(free)]
    return [0.0] * (count - free) + chosen


def _micro_batch(
    adapter: Adapter,
    plan: Plan,
    point: Point,
    prompts: list[str],
    position: Tensor,
    frozen: tuple[str, ...],
    same: bool,
    anchor: str,
    taught: list[str],
) -> None:
    # No copy waits for the device: while it works on one micro-batch the host prepares the next.
    for name, tensor in vars(point).items():
        if isinstance(tensor, Tensor):
            setattr(point, name, tensor.to(adapter.device, non_blocking=True))
    point.kept = {k: kept.to(adapter.device, non_blocking=True) for k, kept in point.kept.items()}
    cond = adapter.encode(prompts).to(adapter.device)
    with torch.no_grad():
        if "old" in frozen:
            with adapter.using("old"):
                point.v_old = adapter.replayed(point.x_t, point.t_B, cond)
        if "base" in frozen or (point.kl > 0 and anchor == "base"):
            with adapter.using("base"):
                point.v_ref = adapter.replayed(point.x_t, point.t_B, cond)
        if taught:
            point.v_teacher = taught_velocity(adapter, point, cond, taught)
    with adapter.using("default"):
        run = adapter.velocity if plan.records else adapter.replayed
        with plan.recording(len(position)):
            v = run(point.x_t, point.t_B, cond)
        if same and point.v_old is None:
            point.v_old = v.detach()
        if point.kl > 0 and anchor == "old":
            point.v_ref = point.v_old
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
