"""Rewards that look at a prompt's pictures together, or two at a time.

A reward says so by its `scope` (a function by the decorators below). Either way it gives one score
a picture, so everything after it is as for any other reward.

- ``"group"``: ``score`` is called with all the pictures of one prompt, and with nothing else;
- ``"pair"``: ``score`` gets pairs of pictures of one prompt, ``[m, 2, 3, H, W]``, and says of each
  how good the first is beside the second. A picture's score is the mean over all the others of its
  prompt. Every pair is asked both ways round, so a preference for the first place adds the same to
  every picture, which an advantage takes out.

A picture without another one of its prompt has no such score: NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from marble.rewards.base import Metadata, RewardLike, scope_of

F = TypeVar("F", bound=Callable[..., Any])

#: Pairs a pairwise reward is shown at once.
PAIRS = 64


class WrongLength(Exception):
    """A reward gave another number of scores than it was asked for."""


def groupwise(function: F) -> F:
    """Marks a function as a reward of all the pictures of one prompt."""
    function.scope = "group"  # type: ignore[attr-defined]
    return function


def pairwise(function: F) -> F:
    """Marks a function as a reward of pairs of pictures, ``[m, 2, 3, H, W]``."""
    function.scope = "pair"  # type: ignore[attr-defined]
    return function


class ByGroups(ABC):
    """For rewards that score the pictures of several prompts at once, by `score_groups`."""

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        """As one group."""
        return self.score_groups(images, prompts, metadata, [0] * len(prompts))

    @abstractmethod
    def score_groups(
        self,
        images: torch.Tensor,
        prompts: list[str],
        metadata: list[Metadata],
        groups: list[Hashable],
    ) -> np.ndarray:
        """float64 ``[n]``; `groups` says which pictures belong together."""


def members(groups: Sequence[Hashable]) -> list[list[int]]:
    """Positions of each group, groups in the order of their first picture."""
    found: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        found.setdefault(group, []).append(i)
    return list(found.values())


def accompanied(groups: Sequence[Hashable], mask: np.ndarray) -> np.ndarray:
    """The mask without pictures that are alone in their group under it."""
    kept = mask.copy()
    for rows in members(groups):
        if mask[rows].sum() < 2:
            kept[rows] = False
    return kept


def ask(
    reward: RewardLike,
    images: torch.Tensor,
    prompts: list[str],
    metadata: list[Metadata],
    groups: Sequence[Hashable],
) -> np.ndarray:
    """A reward's scores, float64 ``[n]``, by whatever it looks at."""
    scope, count = scope_of(reward), len(prompts)
    if scope == "picture":
        return numbers(reward.score(images, prompts, metadata), count)
    own = getattr(reward, "score_groups", None)
    if own is not None:
        return numbers(own(images, prompts, metadata, list(groups)), count)
    scores = np.full(count, np.nan)
    for rows in members(groups):
        part = images[rows], [prompts[i] for i in rows], [metadata[i] for i in rows]
        if scope == "group":
            scores[rows] = numbers(reward.score(*part), len(rows))
        else:
            scores[rows] = _by_pairs(reward, *part)
    return scores


def _by_pairs(
    reward: RewardLike, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
) -> np.ndarray:
    count = len(prompts)
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    table = np.full((count, count), np.nan)
    for start in range(0, len(pairs), PAIRS):
        few = pairs[start : start + PAIRS]
        first, second = (list(side) for side in zip(*few))
        shown = torch.stack([images[first], images[second]], dim=1)
        given = reward.score(shown, [prompts[i] for i in first], [metadata[i] for i in first])
        table[first, second] = numbers(given, len(few))
    # A pair the reward abstains on is left out of the mean; infinities stay, and are refused.
    told = ~np.isnan(table)
    sums, counts = np.where(told, table, 0.0).sum(1), told.sum(1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def numbers(raw: Any, count: int) -> np.ndarray:
    """What a reward returned as float64 ``[count]``, None as NaN."""
    if isinstance(raw, torch.Tensor):
        raw = raw.detach().double().cpu().numpy()
    wanted = "return one number per picture, or None"
    try:
        if not isinstance(raw, np.ndarray):
            raw = [np.nan if value is None else value for value in raw]
        values = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"returned {raw!r:.60}; {wanted}") from None
    if values.shape != (count,):
        raise WrongLength(f"returned shape {values.shape} for {count} pictures; {wanted}")
    return values
