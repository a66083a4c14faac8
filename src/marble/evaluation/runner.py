"""Scores of a model on given prompts with fixed seeds, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marble.data import Prompt, sample_seed
from marble.evaluation.summary import summarise

if TYPE_CHECKING:
    from torch import Tensor

    from marble.models.base import Adapter
    from marble.rewards import RewardSet


@dataclass(frozen=True)
class EvalResult:
    """Every picture's prompt, seed and scores; pictures too if they were kept."""

    prompts: list[Prompt]
    seeds: list[int]
    scores: dict[str, np.ndarray]
    """Score → [n], NaN where it does not apply."""
    images: Tensor | None = None

    def summary(self) -> dict[str, dict[str, Any]]:
        """name → mean with its bootstrap interval over prompts, and means by source."""
        sources = [prompt.source for prompt in self.prompts]
        return summarise(self.scores, sources, [prompt.text for prompt in self.prompts])

    def record(self) -> dict[str, Any]:
        """Everything but the pictures, ready for JSON; inapplicable is null, never a number."""
        samples = [
            {
                "prompt": prompt.text,
                "source": prompt.source,
                "seed": seed,
                "scores": {n: _json(v[i]) for n, v in self.scores.items()},
            }
            for i, (prompt, seed) in enumerate(zip(self.prompts, self.seeds))
        ]
        return {"scores": self.summary(), "samples": samples}


def evaluate(
    adapter: Adapter,
    rewards: RewardSet,
    prompts: Sequence[Prompt],
    *,
    seed: int = 1234,
    images_per_prompt: int = 1,
    steps: int = 25,
    sampler: str = "dpm",
    guidance: float = 1.0,
    batch_size: int = 16,
    keep_images: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> EvalResult:
    """Draws `images_per_prompt` pictures of every prompt under the adapter in use and scores them.

    Picture i has the same seed for every model, so results pair up. `progress(done, total)` is
    called after every batch.
    """
    import torch

    rows = [prompt for prompt in prompts for _ in range(images_per_prompt)]
    seeds = [sample_seed(seed, i) for i in range(len(rows))]
    tables, kept = [], []
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        texts = [prompt.text for prompt in part]
        latents = adapter.sample(
            adapter.encode(texts),
            seeds[start : start + batch_size],
            steps=steps,
            sampler=sampler,
            guidance=guidance,
        )
        images = adapter.decode(latents)
        tables.append(rewards.score(images, texts, [dict(prompt.metadata) for prompt in part]))
        if keep_images:
            kept.append(images)
        if progress:
            progress(min(start + batch_size, len(rows)), len(rows))
    table = np.concatenate(tables, axis=1) if tables else np.zeros((len(rewards.names), 0))
    scores = dict(zip(rewards.names, table))
    return EvalResult(rows, seeds, scores, torch.cat(kept) if kept else None)


def _json(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
