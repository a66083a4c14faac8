"""Progress of every reward on a fixed probe: the same prompts and seeds, now and from the base.

The batches of training have other prompts every time, and how hard these are hides how far the
model has come. Twins from one seed differ only by what was learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from marble.data import Prompt, Sample, held_out, sample_seed
from marble.evaluation import relative_gains, twin_correlations
from marble.models.base import Adapter
from marble.recipe import Recipe
from marble.rewards import RewardSet
from marble.training.evaluate import evaluate_policy
from marble.training.processes import Processes

_SEED = 0x9B0BE


class Probe:
    """Draws the probe when it is due. The base's scores are drawn once, and again after a resume:
    they depend on nothing that training changes."""

    def __init__(self, recipe: Recipe, prompts: Mapping[str, Sequence[Prompt]]) -> None:
        self.recipe = recipe
        self.every = recipe.balance.progress.probe_every
        self.samples = probe_samples(prompts, recipe.balance.progress.probe, recipe.train.seed)
        self._base_Kn: np.ndarray | None = None

    def due(self, step: int) -> bool:
        return step > 0 and step % self.every == 0

    def measure(
        self, adapter: Adapter, rewards: RewardSet, processes: Processes
    ) -> tuple[np.ndarray, np.ndarray]:
        """p_K, the mean paired gain in standard deviations of the base's scores, and trust in it:
        the correlation of the twins, 0 to 1. A reward that does not know the twin of a picture
        again is noise, and must not look like one that lags."""

        def drawn(policy: str) -> np.ndarray:
            found = evaluate_policy(
                adapter, [rewards], self.samples, self.recipe, processes, policy=policy
            )
            return np.stack([found.scores[name] for name in rewards.names])

        if self._base_Kn is None:
            self._base_Kn = drawn("base")
        now_Kn = drawn("default")
        alike_K = twin_correlations(now_Kn, self._base_Kn)
        return relative_gains(now_Kn, self._base_Kn), np.clip(alike_K, 0.0, 1.0)


def probe_samples(prompts: Mapping[str, Sequence[Prompt]], count: int, seed: int) -> list[Sample]:
    """One picture each of `count` training prompts, evenly from all sources (at least one each)."""
    sources = list(prompts)
    samples: list[Sample] = []
    for i, source in enumerate(sources):
        share = max(1, (count + i) // len(sources))
        for prompt in held_out(prompts[source], share, seed + _SEED):
            n = len(samples)
            samples.append(Sample(prompt, n, sample_seed(seed + _SEED, n), n))
    return samples
