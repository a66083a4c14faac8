"""The sections of a recipe that say which rewards count, and how they are balanced."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marble.errors import MarbleError
from marble.harmonise import DEFAULT, RULES, GramRule, Progress, Rule, rule_class
from marble.objectives import OBJECTIVES
from marble.recipe.base import (
    Count,
    Decay,
    Fraction,
    Name,
    NonNegative,
    Positive,
    PositiveInt,
    Section,
)

METHODS: tuple[str, ...] = tuple(RULES)
GRAM_METHODS: tuple[str, ...] = tuple(n for n, rule in RULES.items() if issubclass(rule, GramRule))
#: What belongs to other methods or only measures: of no consequence to a rule that `fixes` all.
_HARMLESS = ("method", "heldout_half", "reward", "stages", *METHODS)


#: Fields that are gone, and the value that switched them off: older run folders still say so.
_GONE = {"debias": False, "gradient_ema": 0.0, "metric": "plain", "snr": 0.0}


class Reward(Section):
    name: Name = Field(description="Name in logs, tables and overrides; unique in the recipe.")
    reward: str = Field(
        default="", description="Registry name or `package.module:callable`; default: the name."
    )
    sources: list[Name] | None = Field(
        default=None,
        description="Prompt sources it applies to; null: those the reward itself accepts.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the reward."
    )
    isolate: bool | Positive = Field(
        default=False,
        description="Run it in a process of its own, which is killed at the deadline and started "
        "again after a crash. A number is its main memory in GB; true: half of the machine's.",
    )
    weight: NonNegative = Field(
        default=1.0,
        description="Weight under weighted_sum, gdpo and fixed; others choose their own.",
    )
    priority: Positive = Field(
        default=1.0,
        description="`progress`: its coefficient times this (Gram methods: balance.priorities).",
    )

    @model_validator(mode="before")
    @classmethod
    def _named_like_its_reward(cls, value: Any) -> Any:
        if isinstance(value, dict) and "name" in value and not value.get("reward"):
            return {**value, "reward": value["name"]}
        return value

    @model_validator(mode="after")
    def _names_something(self) -> Reward:
        place, colon, attribute = self.reward.rpartition(":")
        module = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
        if colon and not (module and attribute.isidentifier()):
            raise ValueError(
                f"reward: must be like package.module:callable or file.py:callable, "
                f"got {self.reward!r}"
            )
        return self


class Rewards(Section):
    train: list[Reward] = Field(
        default_factory=list, description="Rewards to train on; a plain name is shorthand."
    )
    heldout: list[Reward] = Field(
        default_factory=list, description="Scores that are only measured, never trained on."
    )
    on_error: Literal["stop", "skip_sample"] = Field(
        default="stop", description="A failed score stops the run, or counts as not applicable."
    )
    deadline_s: Positive = Field(
        default=600.0, description="Seconds a reward may take for a batch."
    )
    silent_epochs: Count = Field(
        default=5,
        description="Epochs in a row without a score of a reward that had prompts, after which the "
        "run stops; 0: never.",
    )

    @property
    def names(self) -> list[str]:
        """Training rewards in order: the K axis."""
        return [reward.name for reward in self.train]

    @property
    def weights(self) -> list[float]:
        """Their weights, in the same order."""
        return [reward.weight for reward in self.train]


class Stage(Section):
    steps: PositiveInt | None = Field(
        default=None, description="Optimiser steps; null: what is left, shared evenly."
    )
    rewards: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="Rewards of the stage (their masked mean); null: all."
    )
    sources: Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="Prompt sources of the stage; null: all."
    )


class Balance(Section):
    method: str = Field(
        default=DEFAULT,
        description=f"How rewards are combined: {', '.join(METHODS)}; your own as `module:Class`.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="The method's own options, e.g. {c: 0.4} of cagrad."
    )
    every: PositiveInt = Field(default=10, description="Optimiser steps between solves (N).")
    rho: Decay = Field(default=0.7, description="EMA of the coefficients: ᾱ ← ρ ᾱ + (1−ρ) α*.")
    amortise: Literal["paper", "normalised"] = Field(
        default="paper", description="Steps in between: c = ᾱ, or ᾱ·n̄/‖g_k‖ (the exact full step)."
    )
    target: Literal["full", "reward"] | None = Field(
        default=None,
        description="Balance whole gradients, as published, or only their reward-driven part, "
        "sized like the advantages of a single reward; null: reward, where the objective can.",
    )
    probe: Fraction = Field(
        default=1.0, description="Part of the refresh step's micro-batches that the solve looks at."
    )
    priorities: dict[Name, Positive] = Field(
        default_factory=dict, description="π_k: rewards are balanced as g_k / π_k; default 1."
    )
    floors: list[Name] = Field(
        default_factory=list, description="Rewards a step must never degrade (to first order)."
    )
    groups: dict[Name, Annotated[list[Name], Field(min_length=1)]] = Field(
        default_factory=dict, description="Rewards balanced as one: group name → rewards."
    )
    ridge: NonNegative = Field(
        default=0.0,
        description="Added to the normalised Gram's diagonal; 0.02–0.1 calms duplicates.",
    )
    drop_silent: bool = Field(
        default=True, description="Leave out of a solve the rewards without an informative sample."
    )
    masks: bool = Field(
        default=True,
        description="False: `does not apply` counts as a score of 0, for comparison only.",
    )
    hybrid: Literal["none", "gate"] = Field(
        default="none",
        description="`gate`: measured progress takes over from a Gram method while the rewards "
        "that it favours run ahead.",
    )
    heldout_half: bool = Field(
        default=False,
        description="Solve on one half of the samples, measure conflict on the other.",
    )
    consolidate: Count = Field(
        default=0, description="Last optimiser steps, taken with uniform coefficients."
    )
    dropout: Decay = Field(
        default=0.5, description="`dropout`: chance that a reward sits out a step."
    )
    reward: Name | None = Field(default=None, description="`single`: the reward to train on.")
    stages: list[Stage] = Field(default_factory=list, description="`sequential`: the stages.")
    progress: Progress.Options = Field(
        default=Progress.Options(),
        description="Measured progress: options of `progress`, and of what steers a `hybrid`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_gone(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for key, off in _GONE.items():
            if data.get(key, off) != off:
                raise ValueError(f"{key} is gone: no measurement spoke for it; leave it out")
        return {key: value for key, value in data.items() if key not in _GONE}

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("method"), str):
            return data
        try:
            rule = rule_class(data["method"])
        except MarbleError:  # told below
            return data
        if rule.fixes is None:
            return data
        published = {
            name: rule.fixes.get(name, field.get_default(call_default_factory=True))
            for name, field in cls.model_fields.items()
            if name not in _HARMLESS
        }
        for key, value in published.items():
            if data.get(key, value) != value:
                loose = ", ".join(base.name for base in rule.__bases__ if issubclass(base, Rule))
                raise ValueError(
                    f"{rule.name} is the rule as published, with {key}: {value}; to change it "
                    f"take method: {loose}"
                )
        return {**data, **rule.fixes}

    @model_validator(mode="after")
    def _method_is_known(self) -> Balance:
        try:
            rule = self.rule
        except MarbleError as error:
            name, told = self.method, str(error)
            if name in OBJECTIVES:
                told = f"{name} is an objective; set objective.name={name}"
            raise ValueError(f"method: {told}") from None
        try:
            rule.read_options(self._plain_options)
        except MarbleError as error:
            raise ValueError(f"options: {error}") from None
        return self

    @property
    def _plain_options(self) -> dict[str, Any]:
        """Those that do not name rewards, which are known only to the whole recipe."""
        return {k: v for k, v in self.rule_options.items() if not isinstance(v, dict)}

    @property
    def rule_options(self) -> dict[str, Any]:
        """The method's own options: a section of its name, if there is one, and `options`."""
        section = getattr(self, self.method, None)
        own = section.model_dump() if isinstance(section, Section) else {}
        if self.rule.shorthand is not None and section is not None:
            own = {self.rule.shorthand: section}
        return own | self.options

    @property
    def recorded(self) -> float:
        """The part of all steps that take the K gradients, two backward passes in place of one."""
        if self.rule.owned(self.rule.read_options(self._plain_options)):
            return 1.0
        return 1 / self.every if self.uses_gram else 0.0

    @property
    def rule(self) -> type[Rule]:
        """The class of the method."""
        return rule_class(self.method)

    @property
    def pairs(self) -> int:
        """How many of an epoch's pictures the base draws too, for a method that compares them."""
        own = self.rule.pairs(self.rule.read_options(self._plain_options))
        return max(own, Progress.pairs(self.progress) if self.hybrid != "none" else 0)

    @property
    def uses_gram(self) -> bool:
        """Whether the method needs the K×K Gram matrix of the rewards' gradients."""
        return issubclass(self.rule, GramRule)
