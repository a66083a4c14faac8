"""Paired base samples: prompts and seeds of an epoch's pictures, drawn by the base."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marble.data import Sample
from marble.models.base import Adapter
from marble.recipe import Recipe
from marble.rewards import RewardSet
from marble.rewards.groups import members
from marble.training.evaluate import evaluate_policy
from marble.training.processes import Processes
from marble.training.rollout import Rollout, described


def choose(samples: Sequence[Sample], count: int, *, compared: bool = False) -> list[int]:
    """Positions of `count` samples, as evenly from all prompts as can be.

    With `compared`, for rewards that compare pictures of a prompt: equally many of each prompt
    chosen, at least two, and therefore of fewer prompts or fewer samples where they do not suffice.
    """
    if compared:
        groups = members([s.group for s in samples])
        used = max(1, min(len(groups), count // 2))
        each = min(max(2, count // used), *map(len, groups))
        kept = [groups[i * len(groups) // used] for i in range(used)]
        return sorted(i for rows in kept for i in rows[:each])
    drawn: dict[int, int] = {}
    turn: list[int] = []
    for sample in samples:
        turn.append(drawn.get(sample.group, 0))
        drawn[sample.group] = turn[-1] + 1
    return sorted(sorted(range(len(samples)), key=turn.__getitem__)[:count])


def own_scores(
    rewards: RewardSet,
    rollout: Rollout,
    samples: Sequence[Sample],
    scores_Kn: np.ndarray,
    processes: Processes,
) -> np.ndarray:
    """What the epoch's pictures of `samples` score, [K, n], given `scores_Kn` of the epoch.

    Rewards that compare pictures score them anew, among just these, as they do the base's.
    """
    if not rewards.compares:
        return scores_Kn
    wanted = {s.index for s in samples}
    rows = [i for i, s in enumerate(rollout.samples) if s.index in wanted]
    mine = [rollout.samples[i] for i in rows]
    some = rewards.unwatched(rewards.compares)

    def score() -> dict[int, np.ndarray]:
        if not rows:
            return {}
        table = some.score(rollout.images[rows], *described(mine))
        return {s.index: table[:, i] for i, s in enumerate(mine)}

    found = {k: v for part in processes.gather(processes.together(score)) for k, v in part.items()}
    scores_Kn = scores_Kn.copy()
    at = [rewards.names.index(name) for name in some.names]
    scores_Kn[at] = np.stack([found[s.index] for s in samples], axis=1)
    return scores_Kn


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
        adapter,
        [rewards.unwatched()],
        samples,
        like_rollout,
        processes,
        policy="base",
        fp8=recipe.rollout.fp8,
    )
    return np.stack([found.scores[name] for name in rewards.names])
