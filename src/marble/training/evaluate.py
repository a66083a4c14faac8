"""Scores of a policy on held-out prompts with fixed seeds, over all processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marble.data import Sample
from marble.evaluation import geneval_record, summarise
from marble.models.base import Adapter
from marble.recipe import Recipe
from marble.rewards import RewardLike, RewardSet
from marble.rewards.guard import contained
from marble.rewards.set import applicable
from marble.training.dealing import batches, shares
from marble.training.memory import fitted
from marble.training.processes import Processes
from marble.training.rollout import described, make_rollout


@dataclass
class Evaluation:
    """Pictures and scores in the order of `samples`; the same on every process."""

    samples: list[Sample]
    images: Tensor
    scores: dict[str, np.ndarray]
    """Reward → [n], NaN where it does not apply."""
    seconds: float

    def record(self, trained: list[str]) -> dict[str, Any]:
        """Means with intervals: of the rewards trained on, of those held out, and by source."""
        summary = summarise(
            self.scores,
            [s.prompt.source for s in self.samples],
            [s.prompt.text for s in self.samples],
        )
        by_source: dict[str, dict[str, float]] = {}
        for name, entry in summary.items():
            for source, mean in entry.pop("by_source").items():
                by_source.setdefault(source, {})[name] = mean
        record = {
            "rewards": {name: summary[name] for name in trained},
            "heldout": {name: v for name, v in summary.items() if name not in trained},
            "by_source": by_source,
        }
        tagged = geneval_record(self.scores, [s.prompt.metadata for s in self.samples])
        return record | ({"geneval": tagged} if tagged else {})


def evaluate_policy(
    adapter: Adapter,
    rewards: Sequence[RewardSet | None],
    samples: Sequence[Sample],
    recipe: Recipe,
    processes: Processes,
    *,
    policy: str,
    fp8: bool = False,
) -> Evaluation:
    """Draws every sample once, whatever the number of processes, and scores it.

    fp8: as a rollout with `rollout.fp8` draws; evaluations do not.
    """
    started = time.perf_counter()
    recipe = fitted(recipe, adapter.device, processes.size)
    sets = [r for r in rewards if r is not None]
    # With a sharded model all processes must draw equally often: a few samples are drawn twice.
    dealt = shares(samples, processes.size, whole_groups=any(r.compares for r in sets), even=True)
    mine = [samples[i] for i in dealt[processes.rank]]
    table, images = processes.together(
        lambda: _draw_and_score(adapter, sets, mine, recipe, policy, fp8)
    )
    if processes.size > 1:
        table, images = _collect(table, images, dealt, len(samples), processes)
    names = [name for r in sets for name in r.names]
    scores = dict(zip(names, table))
    for part in sets:
        if part.watched and processes.is_main:
            _tell_of_silence(part, samples, scores)
    return Evaluation(list(samples), images, scores, time.perf_counter() - started)


def _tell_of_silence(
    rewards: RewardSet, samples: Sequence[Sample], scores: dict[str, np.ndarray]
) -> None:
    """A reward that scored none of the pictures it is meant for leaves a gap in every table."""
    for reward in rewards.rewards:
        meant = meant_for(reward, samples)
        if meant and np.isnan(scores[reward.name]).all():
            why = ""
            if reward.name in rewards.compares and len({s.group for s in samples}) == len(samples):
                why = ": it compares a prompt's pictures; set eval.images_per_prompt to 2 or more"
            rewards.note(f"reward {reward.name} gave no score for any of {meant} pictures{why}")


def meant_for(reward: RewardLike, samples: Sequence[Sample]) -> int:
    """How many samples are of a reward's sources, and such that it says it applies."""
    try:
        with contained():
            return sum(
                applicable(reward, {**s.prompt.metadata, "prompt": s.prompt.text}) for s in samples
            )
    except Exception:  # scoring has told of it
        return len(samples)


def _draw_and_score(
    adapter: Adapter,
    sets: list[RewardSet],
    samples: list[Sample],
    recipe: Recipe,
    policy: str,
    fp8: bool,
) -> tuple[np.ndarray, Tensor]:
    """Scores by all rewards of `sets`, one below the other, and the pictures."""
    settings, rollout = recipe.eval, recipe.rollout
    size = settings.batch_size or rollout.batch_size
    assert size is not None  # `evaluate_policy` has seen to it
    mine = make_rollout(
        adapter,
        sets[0],
        samples,
        policy=policy,
        steps=settings.steps or rollout.steps,
        sampler=settings.sampler or rollout.sampler,
        guidance=settings.guidance or rollout.guidance,
        batch_size=size,
        pool=None,
        sde=rollout.sde,
        fp8=fp8,
    )
    tables = [mine.scores_Kn]
    for more in sets[1:]:  # in batches too: a reward's deadline is meant for one
        parts = [
            more.score(mine.images[part], *described(mine.samples[part]))
            for part in batches(mine.samples, size, whole_groups=bool(more.compares))
        ]
        tables.append(np.concatenate(parts, axis=1) if parts else np.zeros((len(more), 0)))
    return np.concatenate(tables), mine.images


def _collect(
    table: np.ndarray,
    images: Tensor,
    dealt: list[list[int]],
    count: int,
    processes: Processes,
) -> tuple[np.ndarray, Tensor]:
    """Everyone's scores and pictures, back in the order of the samples."""
    whole = np.full((len(table), count), np.nan)
    pictures: Tensor | None = None
    done: set[int] = set()
    for rows, (part, drawn) in zip(dealt, processes.gather((table, images))):
        first = [k for k, i in enumerate(rows) if i not in done]  # not those drawn a second time
        done.update(rows)
        at = [rows[k] for k in first]
        whole[:, at] = part[:, first]
        if len(drawn):
            if pictures is None:
                pictures = torch.zeros(count, *drawn.shape[1:], dtype=torch.uint8)
            pictures[at] = drawn[first]
    return whole, pictures if pictures is not None else torch.zeros(0, dtype=torch.uint8)
