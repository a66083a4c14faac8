"""From a recipe to the parts of a run; what can be checked cheaply is, before anything loads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from marble.balance import Balancer
from marble.balance.gates import Gate, only, stages
from marble.data import GroupSampler, Prompt, Sample, held_out, load_prompts, sample_seed
from marble.errors import MarbleError
from marble.harmonise import Steerable
from marble.models import fp8
from marble.models.base import Adapter
from marble.models.build import build_adapter, check_model, check_prompts
from marble.models.sliders import Sliders
from marble.objectives import objective_class
from marble.recipe import Recipe
from marble.rewards import RewardSet
from marble.rewards import check as check_reward
from marble.rewards import load as load_reward
from marble.rewards.isolated import Isolated
from marble.training.fsdp import shard_base
from marble.training.teachers import add_teachers, find_teachers


@dataclass
class Parts:
    """Everything a run is made of, on this process's device."""

    adapter: Adapter
    rewards: RewardSet
    heldout: RewardSet | None
    samplers: list[tuple[int, GroupSampler]]
    """(first optimiser step, sampler); one entry unless the stages have sources of their own."""
    eval_samples: list[Sample]
    probe_samples: list[Sample]
    """Held-out pictures by which training watches itself."""
    balancer: Balancer
    optimizer: torch.optim.AdamW


def check(recipe: Recipe, *, training: bool = True) -> None:
    """What can be wrong and be found out in a moment: prompts, model files, rewards.

    Without `training`, of an evaluation.
    """
    check_model(recipe)
    texts = [s.prompt.text for s in evaluation_samples(recipe)]
    if training:
        texts += [p.text for _, s in _samplers(recipe) for part in s.prompts.values() for p in part]
    for reward in (*recipe.rewards.train, *recipe.rewards.heldout):
        if not (reward.isolate and ":" in reward.reward):  # whose code only its worker runs
            check_reward(reward.reward, **reward.options)
    if training:
        find_teachers(recipe)
    check_prompts(recipe, dict.fromkeys(texts))


def build(recipe: Recipe, device: torch.device, processes: int = 1) -> Parts:
    """The parts of a recipe that `check` found no fault with."""
    sharded = recipe.train.fsdp and processes > 1
    if recipe.rollout.fp8:
        fp8.check(device)
    samplers = _samplers(recipe)
    eval_samples = evaluation_samples(recipe)
    rewards, heldout = build_rewards(recipe, device)
    if sharded and rewards.compares and recipe.data.prompts_per_epoch % processes:
        raise MarbleError(
            f"train.fsdp: {rewards.compares[0]} compares the pictures of a prompt, so an epoch's "
            f"{recipe.data.prompts_per_epoch} prompts must divide by {processes} processes"
        )
    adapter = build_adapter(recipe, device, denoiser_on_cpu=sharded, training=True)
    lora = recipe.model.lora
    adapter.add_lora(
        lora.rank, lora.alpha, targets=lora.targets, init=lora.init, seed=recipe.train.seed
    )
    add_sliders(recipe, adapter)
    add_teachers(recipe, adapter)
    if sharded:
        shard_base(adapter, processes)
    optim = recipe.optim
    optimizer = torch.optim.AdamW(
        list(adapter.lora_parameters().values()),
        lr=optim.lr,
        betas=(optim.betas[0], optim.betas[1]),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
    )
    balancer = build_balancer(recipe, adapter)
    return Parts(
        adapter=adapter,
        rewards=rewards,
        heldout=heldout,
        samplers=samplers,
        eval_samples=eval_samples,
        probe_samples=probe_samples(recipe),
        balancer=balancer,
        optimizer=optimizer,
    )


def add_sliders(recipe: Recipe, adapter: Adapter) -> None:
    """Shares the LoRA's rank out among the rewards, where the method gives each a slider."""
    rule, names = recipe.balance.rule, recipe.rewards.names
    if issubclass(rule, Steerable):
        steer = rule(**recipe.balance.rule_options)
        shared, each = steer.ranks(recipe.model.lora.rank, len(names))
        adapter.add_sliders(Sliders(tuple(names), shared, each, steer.options.most))


def build_rewards(recipe: Recipe, device: torch.device) -> tuple[RewardSet, RewardSet | None]:
    """The rewards trained on, and those only measured; one instance for training and evaluation."""
    sets = []
    for group in (recipe.rewards.train, recipe.rewards.heldout):
        members = {
            entry.name: load_reward(
                entry.reward,
                sources=entry.sources,
                isolate=entry.isolate,
                **{"device": device, **entry.options},
            )
            for entry in group
        }
        sets.append(
            RewardSet(
                members, on_error=recipe.rewards.on_error, deadline_s=recipe.rewards.deadline_s
            )
            if members
            else None
        )
    assert sets[0] is not None
    return sets[0], sets[1]


def build_balancer(recipe: Recipe, adapter: Adapter) -> Balancer:
    b, o, names = recipe.balance, recipe.objective, recipe.rewards.names
    options, progress = b.rule_options, b.progress.model_dump()
    for wanted in (options, progress):
        if wanted.get("units") == "range":
            wanted["ranges"] = _ranges(recipe)
    priorities = {reward.name: reward.priority for reward in recipe.rewards.train}
    sliders = adapter.sliders
    return Balancer(
        adapter.transformer,
        names,
        method=b.method,
        objective=objective_class(o.name)(o),
        weights=dict(zip(names, recipe.rewards.weights)),
        std=o.advantage_std,
        target=b.target,
        every=b.every,
        measure_every=recipe.log.harmony_every,
        heldout=b.heldout_half,
        drop_silent=b.drop_silent,
        masks=b.masks,
        gate=_gate(recipe),
        seed=recipe.train.seed,
        shares=[] if sliders is None else sliders.shares(adapter.lora_parameters()),
        rho=b.rho,
        amortise=b.amortise,
        priorities=b.priorities if b.uses_gram else priorities,
        floors={name: 0.0 for name in b.floors},
        groups=b.groups,
        ridge=b.ridge,
        probe=b.probe,
        consolidate=b.consolidate,
        total_steps=recipe.train.steps,
        options=options,
        hybrid=b.hybrid,
        progress=progress,
    )


def _ranges(recipe: Recipe) -> list[tuple[float, float]]:
    ranges = []
    for entry in recipe.rewards.train:
        reward = load_reward(entry.reward, isolate=entry.isolate, **entry.options)
        span = reward.range
        if isinstance(reward, Isolated):
            reward.close()
        if not all(map(math.isfinite, span)):
            raise MarbleError(
                f"balance.progress.units: reward '{entry.name}' declares no range; use std"
            )
        ranges.append(span)
    return ranges


def _gate(recipe: Recipe) -> Gate | None:
    b, names = recipe.balance, recipe.rewards.names
    if b.reward is not None:
        return only(len(names), names.index(b.reward))
    if b.stages:
        plan = recipe.stages()
        members = [[names.index(n) for n in stage.rewards or names] for _, stage in plan]
        return stages(len(names), [start for start, _ in plan], members)
    return None


def _samplers(recipe: Recipe) -> list[tuple[int, GroupSampler]]:
    data = recipe.data
    prompts: dict[str, list[Prompt]] = {
        name: load_prompts(source.path, data.train_split, source=name)
        for name, source in data.sources.items()
        if source.share > 0
    }

    def sampler(sources: list[str]) -> GroupSampler:
        return GroupSampler(
            {name: prompts[name] for name in sources},
            {name: data.sources[name].share for name in sources},
            prompts_per_epoch=data.prompts_per_epoch,
            images_per_prompt=data.images_per_prompt,
            seed=recipe.train.seed,
        )

    if not recipe.balance.stages:
        return [(0, sampler(list(prompts)))]
    return [
        (start, sampler([s for s in prompts if stage.sources is None or s in stage.sources]))
        for start, stage in recipe.stages()
    ]


def evaluation_samples(recipe: Recipe) -> list[Sample]:
    """Held-out prompts with fixed seeds: the same pictures to be for every model and every step."""
    data, settings = recipe.data, recipe.eval
    samples: list[Sample] = []
    for name, source in data.sources.items():
        prompts = load_prompts(source.eval_path or source.path, data.eval_split, source=name)
        for prompt in held_out(prompts, settings.prompts, settings.seed):
            group = len(samples) // settings.images_per_prompt
            for _ in range(settings.images_per_prompt):
                i = len(samples)
                samples.append(Sample(prompt, group, sample_seed(settings.seed, i), i))
    return samples


def probe_samples(recipe: Recipe) -> list[Sample]:
    """Two pictures each of some held-out prompts, evenly from all sources, with fixed seeds."""
    data, seed = recipe.data, recipe.eval.seed
    names = list(data.sources) if recipe.train.probe else []
    chosen: list[Prompt] = []
    for i, name in enumerate(names):
        source = data.sources[name]
        prompts = load_prompts(source.eval_path or source.path, data.eval_split, source=name)
        pairs = max(1, recipe.train.probe // 2)
        count = pairs * (i + 1) // len(names) - pairs * i // len(names)
        chosen += held_out(prompts, count, seed) if count else []
    return [
        Sample(prompt, group, sample_seed(seed + 1, 2 * group + i), 2 * group + i)
        for group, prompt in enumerate(chosen)
        for i in range(2)
    ]
