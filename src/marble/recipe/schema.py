"""The recipe as a whole: its sections and the checks between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from pydantic import Field, create_model, model_validator

from marble.errors import MarbleError
from marble.harmonise import RULES, Steerable
from marble.objectives import objective_class
from marble.objectives.base import ObjectiveOptions
from marble.objectives.registry import DEFAULT, DefaultOptions
from marble.recipe.balance import Balance, Reward, Rewards, Stage
from marble.recipe.base import FolderName, Section
from marble.recipe.sections import Data, Eval, Log, Model, Optim, Rollout, Train, kept_of
from marble.recipe.yamlio import dump


class Recipe(Section):
    """Everything a run is made of; validated before any model loads."""

    name: FolderName = Field(default="recipe", description="Name of the recipe.")
    description: str = Field(default="", description="One line on what it is for.")
    model: Model = Field(default=Model(), description="The model and its LoRA.")
    data: Data = Field(default=Data(), description="Prompts and groups.")
    rewards: Rewards = Field(default=Rewards(), description="What is good.")
    balance: Balance = Field(default=Balance(), description="How rewards are combined.")
    objective: DefaultOptions = Field(default=DefaultOptions(), description="The loss.")
    rollout: Rollout = Field(default=Rollout(), description="How pictures are sampled.")
    optim: Optim = Field(default=Optim(), description="Optimiser and weight EMA.")
    train: Train = Field(default=Train(), description="Length, batches, checkpoints.")
    eval: Eval = Field(default=Eval(), description="Measurements on held-out prompts.")
    log: Log = Field(default=Log(), description="What is written while training.")

    @property
    def samples_per_epoch(self) -> int:
        return self.data.prompts_per_epoch * self.data.images_per_prompt

    @property
    def trained_per_epoch(self) -> int:
        """Samples of an epoch that are trained on (`train.extremes`)."""
        together = objective_class(self.objective.name).together
        kept = kept_of(self.data.images_per_prompt // together, self.train.extremes)
        return self.data.prompts_per_epoch * kept * together

    @property
    def timesteps_per_sample(self) -> int:
        """Timesteps each sample is trained on, of the `rollout.steps` it was sampled with."""
        return max(1, int(self.train.timesteps_fraction * self.rollout.steps + 1e-9))

    @property
    def trained_rewards(self) -> list[int]:
        """Places of the rewards that training is meant to raise."""
        names, chosen = self.rewards.names, self.balance.reward
        return list(range(len(names))) if chosen is None else [names.index(chosen)]

    def stages(self) -> list[tuple[int, Stage]]:
        """(first step, stage) in order; stages without `steps` share what is left."""
        stages = self.balance.stages
        fixed = sum(stage.steps or 0 for stage in stages)
        open_ended = [i for i, stage in enumerate(stages) if stage.steps is None]
        left = max(0, self.train.steps - fixed)
        out: list[tuple[int, Stage]] = []
        start = 0
        for i, stage in enumerate(stages):
            out.append((start, stage))
            if stage.steps is not None:
                start += stage.steps
            else:
                place = open_ended.index(i)
                n = len(open_ended)
                start += left * (place + 1) // n - left * place // n
        return out

    def dump(self) -> str:
        """The resolved recipe as YAML; `load_recipe` of it gives an equal recipe."""
        return dump(self.model_dump(mode="json"), allow_unicode=True, width=100)

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: its class may be one that is made for its objective."""
        return _from_data, (self.model_dump(mode="json"),)

    @model_validator(mode="after")
    def _sections_agree(self) -> Recipe:
        problem = next(_problems(self), None)
        if problem:
            raise ValueError(problem)
        return self


def recipe_class(raw: dict[str, Any]) -> type[Recipe]:
    """The class for a recipe's data: its `objective` section is declared beside the objective."""
    section = raw.get("objective")
    name = section.get("name", DEFAULT) if isinstance(section, dict) else DEFAULT
    if not isinstance(name, str):
        return Recipe
    return _with_objective(objective_class(name).Options)


def _from_data(raw: dict[str, Any]) -> Recipe:
    return recipe_class(raw).model_validate(raw)


@cache
def _with_objective(options: type[ObjectiveOptions]) -> type[Recipe]:
    if options is DefaultOptions:
        return Recipe
    field = Field(default=options(), description="The loss.")
    return create_model("Recipe", __base__=Recipe, objective=(options, field))


def _problems(recipe: Recipe) -> Iterator[str]:
    """What is wrong between fields, as `dotted.path: message`, most basic first."""
    yield from _data_problems(recipe)
    yield from _reward_problems(recipe)
    yield from _balance_problems(recipe)
    yield from _length_problems(recipe)
    yield from _objective_problems(recipe)


def _data_problems(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if not data.sources:
        yield "data.sources: name at least one prompt source, e.g. {general: studio:general}"
    elif not any(source.share for source in data.sources.values()):
        yield "data.sources: every share is 0; give at least one source a share"
    if data.images_per_prompt < 2:
        yield (
            "data.images_per_prompt: must be at least 2, got 1: an advantage compares the "
            "pictures of one prompt"
        )


def _reward_problems(recipe: Recipe) -> Iterator[str]:
    rewards, sources = recipe.rewards, recipe.data.sources
    if not rewards.train:
        yield "rewards.train: name at least one reward"
    every: list[Reward] = [*rewards.train, *rewards.heldout]
    seen: set[str] = set()
    for reward in every:
        if reward.name in seen:
            yield f"rewards: two rewards are called '{reward.name}'; give one another `name`"
        if reward.name in Rewards.model_fields:
            yield f"rewards: '{reward.name}' is a word of the recipe; give the reward another name"
        seen.add(reward.name)
    # Lines of a JSONL file may carry sources of their own, which are not known before it is read.
    if not any(source.path.endswith(".jsonl") for source in sources.values()):
        for reward in every:
            for name in reward.sources or []:
                if name not in sources:
                    yield f"rewards.{reward.name}.sources: {_unknown(name, sources, 'source')}"
    if "weights" in recipe.balance.rule.Options.model_fields and not any(rewards.weights):
        yield f"rewards: {recipe.balance.method} needs a reward with a weight above 0"


def _balance_problems(recipe: Recipe) -> Iterator[str]:
    balance, names = recipe.balance, recipe.rewards.names
    for key in ("priorities", "floors", "groups"):
        if getattr(balance, key) and not balance.uses_gram:
            yield f"balance.{key}: needs a Gram-based method, which {balance.method} is not"
    for reward in recipe.rewards.train:
        if reward.priority != 1.0 and not balance.rule.prioritised:
            instead = "balance.priorities" if balance.uses_gram else "weights, with method fixed"
            yield f"rewards.{reward.name}.priority: {balance.method} has none; use {instead}"
    progress = balance.progress
    used = isinstance(getattr(balance, balance.method, None), Section) or balance.hybrid != "none"
    if used and progress.paired and (progress.units != "std" or progress.gate):
        key = "gate" if progress.gate else "units"
        remedy = "set progress.paired to 0"
        yield f"balance.progress.{key}: is for progress by batch means; {remedy}"
    if balance.hybrid != "none" and not balance.uses_gram:
        yield f"balance.hybrid: needs a Gram-based method, which {balance.method} is not"
    for name in [*balance.priorities, *balance.floors]:
        if name not in names:
            where = "priorities" if name in balance.priorities else "floors"
            yield f"balance.{where}: {_unknown(name, names, 'training reward')}"
    member_of: dict[str, str] = {}
    for group, members in balance.groups.items():
        for name in members:
            if name not in names:
                yield f"balance.groups.{group}: {_unknown(name, names, 'training reward')}"
            if name in member_of:
                yield f"balance.groups: '{name}' is in both {member_of[name]} and {group}"
            member_of[name] = group
    needed = {
        "reward": f"one of: {', '.join(names)}",
        "stages": "stages, e.g. [{rewards: [ocr]}, {}]",
    }
    for key, what in needed.items():
        if balance.rule.chosen_by == key and not getattr(balance, key):
            yield f"balance.{key}: method {balance.method} needs {what}"
        elif balance.rule.chosen_by != key and getattr(balance, key):
            those = ", ".join(name for name, rule in RULES.items() if rule.chosen_by == key)
            yield f"balance.{key}: is for method {those}; this one is {balance.method}"
    if balance.reward is not None and balance.reward not in names:
        yield f"balance.reward: {_unknown(balance.reward, names, 'training reward')}"
    if issubclass(balance.rule, Steerable):
        yield from _slider_problems(recipe, balance.rule)
    for i, stage in enumerate(balance.stages):
        for name in stage.rewards or []:
            if name not in names:
                yield f"balance.stages.{i}.rewards: {_unknown(name, names, 'training reward')}"
        for name in stage.sources or []:
            if name not in recipe.data.sources:
                yield f"balance.stages.{i}.sources: {_unknown(name, recipe.data.sources, 'source')}"


def _slider_problems(recipe: Recipe, rule: type[Steerable]) -> Iterator[str]:
    names = recipe.rewards.names
    if len(names) < 2:
        yield "balance.method: steer trades rewards off against each other; name at least two"
    if "shared" in names:
        yield "rewards: 'shared' is the LoRA common to all sliders; give the reward another name"
    try:
        rule(**recipe.balance.rule_options).ranks(recipe.model.lora.rank, len(names))
    except MarbleError as error:
        yield str(error)


def _objective_problems(recipe: Recipe) -> Iterator[str]:
    if recipe.rollout.sampler == "sde" and recipe.eval.sampler is None:
        yield "eval.sampler: evaluation draws without noise; set it to dpm or euler"
    objective = objective_class(recipe.objective.name)
    yield from objective.problems(recipe)
    if recipe.rollout.fp8 and objective.keeps_path:
        yield (
            f"rollout.fp8: objective {recipe.objective.name} needs the probabilities of the policy "
            "that draws, and those of fp8 are not known; set it to false"
        )
    if recipe.rollout.fp8 and recipe.train.fsdp:
        yield "rollout.fp8: is for weights that are whole, and train.fsdp shards them"
    if recipe.balance.target == "reward" and not objective.common_pull:
        yield (
            f"balance.target: reward splits off the pull that is common to all rewards, which "
            f"objective {recipe.objective.name} does not have; use full"
        )


def _length_problems(recipe: Recipe) -> Iterator[str]:
    train, balance = recipe.train, recipe.balance
    if train.steps_per_epoch > recipe.trained_per_epoch:
        part = " × train.extremes" if train.extremes < 1 else ""
        yield (
            f"train.steps_per_epoch: {train.steps_per_epoch} steps cannot share "
            f"{recipe.trained_per_epoch} samples (data.prompts_per_epoch × images_per_prompt{part})"
        )
    if balance.consolidate > train.steps:
        yield f"balance.consolidate: {balance.consolidate} is more than train.steps={train.steps}"
    for i, (start, _) in enumerate(recipe.stages()):
        if start >= train.steps:
            yield (
                f"balance.stages.{i}: begins at step {start}, which train.steps={train.steps} "
                "never reaches; lower the stages' steps or leave them out"
            )


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    return f"no {what} called '{name}'; known: {', '.join(known) or 'none'}"
