"""Twins of an epoch's pictures: the same prompts and seeds, drawn by the base."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marble.data import Sample
from marble.models.base import Adapter
from marble.recipe import Recipe
from marble.rewards import RewardSet
from marble.training.evaluate import evaluate_policy
from marble.training.processes import Processes


def choose(samples: Sequence[Sample], count: int) -> list[int]:
    """Positions of `count` samples, as evenly from all prompts as can be."""
    drawn: dict[int, int] = {}
    turn: list[int] = []
    for sample in samples:
        turn.append(drawn.get(sample.group, 0))
        drawn[sample.group] = turn[-1] + 1
    return sorted(sorted(range(len(samples)), key=turn.__getitem__)[:count])


def base_scores(
    adapter: Adapter,
    rewards: RewardSet,
    samples: Sequence[Sample],
    recipe: Recipe,
    processes: Processes,
) -> np.ndarray:
    """What the base's pictures score, [K, n]; drawn as a rollout is, whatever evaluation does."""
    drawing = {"steps": None, "sampler": None, "guidance": None, "batch_size": None}
    like_rollout = recipe.model_copy(update={"eval": recipe.eval.model_copy(update=drawing)})
    found = evaluate_policy(
        adapter, [rewards.unwatched()], samples, like_rollout, processes, policy="base"
    )
    return np.stack([found.scores[name] for name in rewards.names])
