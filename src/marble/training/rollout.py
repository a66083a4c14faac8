"""A rollout: pictures from the old policy, and their scores, as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from marble.data import Sample
from marble.evaluation.canaries import canaries
from marble.models.base import Adapter
from marble.models.samplers import Sampler
from marble.models.sde import Sde
from marble.recipe.sections import Sde as SdeSettings
from marble.rewards import RewardSet


@dataclass
class Rollout:
    """This process's samples of an epoch, with latents, pictures and scores in the same order."""

    samples: list[Sample]
    latents: Tensor
    images: Tensor
    scores_Kn: np.ndarray
    seconds: float
    reward_seconds: float
    """Time spent waiting for scores after the last picture was drawn."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """What else the sampler kept of every sample, for objectives that train on its steps."""

    @cached_property
    def canaries(self) -> dict[str, float]:
        """Image statistics that move first when a model learns to cheat, averaged."""
        if not len(self.images):
            return {}
        found = canaries(self.images.numpy(), [s.group for s in self.samples])
        return {f"canary/{name}": float(np.nanmean(values)) for name, values in found.items()}


def make_rollout(
    adapter: Adapter,
    rewards: RewardSet,
    samples: Sequence[Sample],
    *,
    policy: str,
    steps: int,
    sampler: str,
    guidance: float,
    batch_size: int,
    pool: Executor | None,
    sde: SdeSettings | None = None,
    keep_path: bool = False,
) -> Rollout:
    """Samples under `policy`. With a `pool`, a batch is scored while the next one is drawn.

    sde: settings of the sampler `sde`; its noisy steps are kept with `keep_path`.
    """
    started = time.perf_counter()
    # All prompts at once: encoders that wait in main memory come to the device a single time.
    if samples:
        adapter.encode(list(dict.fromkeys(s.prompt.text for s in samples)))
    latents: list[Tensor] = []
    images: list[Tensor] = []
    scores: list[Future[np.ndarray] | np.ndarray] = []
    kept: list[dict[str, Tensor]] = []
    for start in range(0, len(samples), batch_size):
        part = samples[start : start + batch_size]
        chosen: str | Sde = sampler
        if sampler == "sde":
            chosen = _sde(part, sde or SdeSettings(), keep_path)
        x_0, pictures = draw(
            adapter, part, policy=policy, steps=steps, sampler=chosen, guidance=guidance
        )
        if isinstance(chosen, Sde) and keep_path:
            kept.append(chosen.kept)
        latents.append(x_0)
        images.append(pictures)
        prompts = [s.prompt.text for s in part]
        metadata = [dict(s.prompt.metadata) for s in part]
        if pool is None:
            scores.append(rewards.score(pictures, prompts, metadata))
        else:
            scores.append(pool.submit(rewards.score, pictures, prompts, metadata))
    drawn = time.perf_counter()
    arrays = [s.result() if isinstance(s, Future) else s for s in scores]
    done = time.perf_counter()
    empty = np.zeros((len(rewards.names), 0))
    return Rollout(
        list(samples),
        torch.cat(latents) if latents else torch.zeros(0),
        torch.cat(images) if images else torch.zeros(0, dtype=torch.uint8),
        np.concatenate(arrays, axis=1) if arrays else empty,
        drawn - started,
        done - drawn,
        {name: torch.cat([part[name] for part in kept]) for name in (kept[0] if kept else ())},
    )


def _sde(samples: Sequence[Sample], settings: SdeSettings, keep: bool) -> Sde:
    return Sde(
        [s.seed for s in samples],
        [s.group for s in samples],
        noise=settings.noise,
        window=settings.window,
        keep=keep,
    )


@torch.no_grad()
def draw(
    adapter: Adapter,
    samples: Sequence[Sample],
    *,
    policy: str,
    steps: int,
    sampler: str | Sampler,
    guidance: float,
) -> tuple[Tensor, Tensor]:
    """Latents and uint8 pictures (on the CPU) of some samples under `policy`."""
    cond = adapter.encode([s.prompt.text for s in samples])
    with adapter.using(policy):
        x_0 = adapter.sample(
            cond, [s.seed for s in samples], steps=steps, sampler=sampler, guidance=guidance
        )
    return x_0, adapter.decode(x_0).cpu()
