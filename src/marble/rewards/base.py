"""What a reward is: pictures, prompts and metadata in, one number (or NaN) a picture out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch

from marble.errors import MarbleError

Metadata = Mapping[str, Any]
Scores = Sequence[float | None] | np.ndarray | torch.Tensor
SimpleReward = Callable[[torch.Tensor, list[str], list[Metadata]], Scores]

UNBOUNDED = (-math.inf, math.inf)
Scope = Literal["picture", "group", "pair"]
SCOPES: tuple[Scope, ...] = ("picture", "group", "pair")


def scope_of(reward: object) -> Scope:
    """What a reward looks at: each picture by itself unless it says otherwise."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    scope = getattr(reward, "scope", "picture")
    if scope not in SCOPES:
        name = getattr(reward, "name", reward)
        raise MarbleError(f"reward {name}: scope is {scope!r}; use {', '.join(SCOPES)}")
    return scope


@runtime_checkable
class RewardLike(Protocol):
    """The full form of a reward; any object with these members will do."""

    name: str
    range: tuple[float, float]

    def applies(self, metadata: Metadata) -> bool: ...

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> Scores: ...

    def to(self, device: str | torch.device) -> RewardLike: ...


class Reward:
    """Base class of the built-in rewards.

    ``images`` is a uint8 tensor ``[n, 3, H, W]``; ``metadata`` holds one dict a picture, always
    with ``source`` (and, through :class:`~marble.rewards.set.RewardSet`, ``prompt``). ``score``
    returns n numbers, NaN where the reward has nothing to say. It is only called with pictures
    for which ``applies`` is true.
    """

    name: str = "reward"
    #: Least and greatest value the reward can take; a value outside it is reported.
    range: tuple[float, float] = UNBOUNDED
    #: Restricts the reward to prompts of these sources; None means all.
    sources: frozenset[str] | None = None
    #: Whether NaN where ``applies`` is true means "not applicable" rather than a failure.
    may_abstain: bool = False
    #: What `score` looks at: "picture", "group" or "pair"; see :mod:`marble.rewards.groups`.
    scope: Scope = "picture"

    def applies(self, metadata: Metadata) -> bool:
        """Whether the reward has anything to say about a picture with this metadata."""
        return True

    def score(self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]) -> Scores:
        raise NotImplementedError

    def take_notes(self) -> list[str]:
        """What the user should read about the latest scores, handed out once."""
        return []

    @classmethod
    def check(cls, **options: Any) -> str:
        """What the reward would run on, found without loading it; an error says what is missing."""
        return "needs no weights"

    def to(self, device: str | torch.device) -> Reward:
        """Move the reward's model, if it has one."""
        return self

    def __call__(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> Scores:
        return self.score(images, prompts, metadata)


class FunctionReward(Reward):
    """A plain callable ``f(images, prompts, metadata)`` seen as a reward.

    It says "not applicable" by returning None or NaN.
    """

    may_abstain = True

    def __init__(
        self,
        function: SimpleReward,
        name: str | None = None,
        range: tuple[float, float] = UNBOUNDED,
    ) -> None:
        self.function = function
        self.scope = scope_of(function)
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.range = range

    def score(self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]) -> Scores:
        return self.function(images, prompts, metadata)


def as_reward(thing: object, name: str | None = None) -> RewardLike:
    """``thing`` itself if it has the full form, else the callable wrapped into it."""
    if isinstance(thing, RewardLike):
        if name is not None:
            thing.name = name
        return thing
    if callable(thing):
        return FunctionReward(thing, name)
    raise MarbleError(f"{thing!r} is neither a reward nor a callable")
