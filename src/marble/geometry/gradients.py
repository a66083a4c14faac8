"""Independent batches of a recipe's training epoch, and every reward's gradient on each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marble.balance import Balancer
from marble.data import GroupSampler
from marble.errors import MarbleError
from marble.geometry.folder import Place
from marble.jacobian import adam_metric
from marble.recipe import Recipe
from marble.training import random_state, setup
from marble.training.checkpoint import load_optimizer_tensors
from marble.training.loop import Trainer
from marble.training.processes import Processes

Target = Literal["full", "reward"]
TAG = 0x6E0
"""Keeps the seeds of these batches apart from all that training draws from."""


@dataclass(frozen=True)
class Gradients:
    """Flat gradients of B batches on the CPU, in fp32.

    rows_BRT: K rewards, the weighted sum of them (merged before the gradient) and what the step
        adds outside the balance (the pull to v_old if `target` is "reward", else nothing).
    valid_BK: the reward applies to some sample of the batch; active_BK: and takes part in a step.
    scores_BK: mean scores of the batches' pictures.
    metric_T: Adam's, 1/(√v̂ + eps); None before the first step.
    """

    names: list[str]
    target: Target
    rows_BRT: Tensor
    valid_BK: np.ndarray
    active_BK: np.ndarray
    scores_BK: np.ndarray
    metric_T: Tensor | None


def collect(
    place: Place,
    *,
    batches: int,
    seed: int = 0,
    target: Target | None = None,
    device: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Gradients:
    """Draws `batches` batches as the recipe's epochs do, from seeds of their own; no step is taken.

    A batch is what one optimiser step sees. Prompts are drawn anew for every batch: epochs of one
    run deal them without replacement, and would not be independent.
    """
    recipe = _measuring(place.recipe, target)
    setup.check(recipe)
    processes = Processes(device)
    if processes.size > 1:
        raise MarbleError("marble geometry measures in one process; start it without a launcher")
    trainer = Trainer(recipe, setup.build(recipe, processes.device), processes)
    parts = trainer.parts
    if place.state is not None:
        tensors = place.state.tensors
        parts.adapter.load_lora_state("default", tensors["live"])
        parts.adapter.load_lora_state("old", tensors["old"])
        load_optimizer_tensors(parts.optimizer, tensors["optimizer"])
        parts.balancer.scale = float(place.state.meta["balance"]["scale"])
    found = []
    for number in range(batches):
        found.append(_one_batch(place, trainer, _batch_seed(seed, number)))
        progress(number + 1)
    trainer.close()
    rows, valid, active, scores = zip(*found)
    metric = None
    if parts.optimizer.state:
        metric = parts.balancer.jacobian.flatten(adam_metric(parts.optimizer)).cpu()
    return Gradients(
        recipe.rewards.names,
        parts.balancer.target,
        torch.stack(list(rows)),
        np.array(valid),
        np.array(active),
        np.array(scores),
        metric,
    )


def _measuring(recipe: Recipe, target: Target | None) -> Recipe:
    """The recipe with a balance that records all K gradients at every step, and nothing else."""
    was = recipe.balance
    balance = type(was)(
        method="uniform",
        target=target or was.target,
        masks=was.masks,
        drop_silent=was.drop_silent,
    )
    return recipe.model_copy(
        update={
            "balance": balance,
            "rewards": recipe.rewards.model_copy(update={"heldout": []}),
            "log": recipe.log.model_copy(update={"harmony_every": 1}),
            # The KL is outside the balance, and the same whatever the rule.
            "objective": recipe.objective.model_copy(update={"kl": 0.0, "kl_every": 1}),
            "train": recipe.train.model_copy(update={"overlap_rewards": False}),
        }
    )


def _one_batch(
    place: Place, trainer: Trainer, seed: int
) -> tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """One epoch's rollout and the gradients of its first optimiser step, as `Trainer` takes it."""
    random_state.seed(seed, 0)  # for rewards that draw from the global generators
    trainer.settings = replace(trainer.settings, seed=seed)
    epoch = trainer.draw(_sampler(place, trainer.parts, seed).epoch(0))
    chosen = next(trainer.split(epoch, 0, 0))
    on_policy = trainer.recipe.rollout.old_decay.at(place.epoch) == 0
    report = trainer.gradient(epoch, chosen, 0, 0, on_policy=on_policy)
    if not report.finite:
        raise MarbleError(f"the gradient is not finite: {' '.join(report.notes)}")
    selected = epoch.batch.select(torch.from_numpy(chosen))
    valid = selected.adv.valid_KN.any(1).numpy()
    active = trainer.balancer.active(selected, 0)
    return _rows(trainer.balancer), valid, active, epoch.batch.means_K


def _rows(balancer: Balancer) -> Tensor:
    """[K + 2, total], copied to the CPU; leaves no gradient behind."""
    jacobian = balancer.jacobian
    rows = jacobian.rows.data.sum(0)
    outside = torch.zeros_like(rows[:1]) if jacobian.outside is None else jacobian.outside.data[0]
    found = torch.cat([rows, outside]).float().cpu()
    for parameter in balancer.parameters:
        parameter.grad = None
    return found


def _sampler(place: Place, parts: setup.Parts, seed: int) -> GroupSampler:
    """The recipe's sampler at the place's step, with another seed."""
    data, [(_, known)] = place.recipe.data, parts.samplers
    sources = list(known.prompts)
    if place.recipe.balance.stages:
        stage = next(s for start, s in reversed(place.recipe.stages()) if start <= place.step)
        sources = [s for s in sources if stage.sources is None or s in stage.sources]
    return GroupSampler(
        {name: known.prompts[name] for name in sources},
        {name: data.sources[name].share for name in sources},
        prompts_per_epoch=data.prompts_per_epoch,
        images_per_prompt=data.images_per_prompt,
        seed=seed,
    )


def _batch_seed(seed: int, number: int) -> int:
    """63 well-mixed bits, so that no run's seed is met but by intent."""
    return int(np.random.SeedSequence([seed, number, TAG]).generate_state(1, np.uint64)[0] >> 1)
