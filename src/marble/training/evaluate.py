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
from marble.rewards import RewardSet
from marble.training.processes import Processes
from marble.training.rollout import make_rollout


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
) -> Evaluation:
    """Draws every sample once, whatever the number of processes, and scores it."""
    started = time.perf_counter()
    sets = [r for r in rewards if r is not None]
    # With a sharded model all processes must draw equally often: a few samples are drawn twice.
    even = [*samples, *samples[: -len(samples) % processes.size]]
    table, images = processes.together(
        lambda: _draw_and_score(adapter, sets, processes.mine(even), recipe, policy)
    )
    if processes.size > 1:
        table, images = _collect(table, images, len(even), processes)
        table, images = table[:, : len(samples)], images[: len(samples)]
    names = [name for r in sets for name in r.names]
    return Evaluation(list(samples), images, dict(zip(names, table)), time.perf_counter() - started)


def _draw_and_score(
    adapter: Adapter, sets: list[RewardSet], samples: list[Sample], recipe: Recipe, policy: str
) -> tuple[np.ndarray, Tensor]:
    """Scores by all rewards of `sets`, one below the other, and the pictures."""
    settings, rollout = recipe.eval, recipe.rollout
    size = settings.batch_size or rollout.batch_size
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
    )
    tables = [mine.scores_Kn]
    prompts = [s.prompt.text for s in mine.samples]
    metadata = [dict(s.prompt.metadata) for s in mine.samples]
    for more in sets[1:]:  # in batches too: a reward's deadline is meant for one
        parts = [
            more.score(mine.images[i : i + size], prompts[i : i + size], metadata[i : i + size])
            for i in range(0, len(prompts), size)
        ]
        tables.append(np.concatenate(parts, axis=1) if parts else np.zeros((len(more), 0)))
    return np.concatenate(tables), mine.images


def _collect(
    table: np.ndarray, images: Tensor, count: int, processes: Processes
) -> tuple[np.ndarray, Tensor]:
    """Undoes `Processes.mine`: rank r holds samples r, r + size, …"""
    whole = np.full((len(table), count), np.nan)
    pictures: Tensor | None = None
    for rank, (part, drawn) in enumerate(processes.gather((table, images))):
        whole[:, rank :: processes.size] = part
        if len(drawn):
            if pictures is None:
                pictures = torch.zeros(count, *drawn.shape[1:], dtype=torch.uint8)
            pictures[rank :: processes.size] = drawn
    return whole, pictures if pictures is not None else torch.zeros(0, dtype=torch.uint8)
