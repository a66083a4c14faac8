"""A rollout: pictures from the old policy, and their scores, as they come."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marble.data import Sample
from marble.evaluation.drift import drift_statistics, spread_of, thumbnails
from marble.models.base import Adapter
from marble.models.samplers import Sampler
from marble.models.sde import Sde
from marble.recipe.sections import Sde as SdeSettings
from marble.rewards import RewardSet
from marble.training.dealing import batches
from marble.training.processes import Processes

Measured = tuple[dict[str, np.ndarray], np.ndarray]
"""Statistics of pictures by name, and their thumbnails."""


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
    measured: Future[Measured] | None = None
    """Statistics of its pictures, taken while training goes on."""

    def drift_statistics(self, processes: Processes) -> dict[str, float]:
        """Image statistics that move first when a model learns to cheat: means over all processes.

        A prompt's pictures are dealt to several processes, and its diversity is that of all.
        """
        found, thumbs = self.measured.result() if self.measured else _measured(self.images.numpy())
        own = [
            (s.index, s.group, {name: column[i] for name, column in found.items()}, thumbs[i])
            for i, s in enumerate(self.samples)
        ]
        every = sorted((one for part in processes.gather(own) for one in part), key=lambda o: o[0])
        spread = spread_of(
            np.stack([thumb for *_, thumb in every]), [group for _, group, *_ in every]
        )
        columns = {name: [values[name] for _, _, values, _ in every] for name in found}
        columns["diversity"] = spread.tolist()
        return {
            f"drift/{name}": float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
            for name, values in columns.items()
        }


def _measured(images: np.ndarray) -> Measured:
    return drift_statistics(images), thumbnails(images)


def scoring_thread(device: torch.device) -> ThreadPoolExecutor:
    """One thread that scores while the next pictures are drawn, on the same GPU: a new thread
    would begin on the first one, without a context."""
    if device.type != "cuda":
        return ThreadPoolExecutor(1)
    index = torch.cuda.current_device() if device.index is None else device.index
    return ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(index,))


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
    fp8: bool = False,
) -> Rollout:
    """Samples under `policy`. With a `pool`, pictures are scored while the next are drawn.

    Pictures go to the rewards as they come, but where one of these compares the pictures of a
    prompt, not before the prompt's last one is there. The samples of a group lie side by side.

    sde: settings of the sampler `sde`; its noisy steps are kept with `keep_path`. All pictures of
    a prompt then begin at the same latents (as in arXiv 2505.07818): what tells them apart is the
    noise of the steps, which the policy answers for, and not where they began.
    """
    started = time.perf_counter()
    adapter.prepare(list(dict.fromkeys(s.prompt.text for s in samples)))
    latents: list[Tensor] = []
    images: list[Tensor] = []
    scores: list[Future[np.ndarray] | np.ndarray] = []
    kept: list[dict[str, Tensor]] = []
    waiting = torch.zeros(0, dtype=torch.uint8)
    due = batches(samples, batch_size, whole_groups=bool(rewards.compares))
    steered = any(s.prefer is not None for s in samples)
    with adapter.drawing(policy, steered=steered, low=fp8):
        for start in range(0, len(samples), batch_size):
            part = samples[start : start + batch_size]
            chosen: str | Sde = sampler
            if sampler == "sde":
                chosen = _sde(part, sde or SdeSettings(), keep_path)
            x_0, pictures = draw(adapter, part, steps=steps, sampler=chosen, guidance=guidance)
            if isinstance(chosen, Sde) and keep_path:
                kept.append(chosen.kept)
            latents.append(x_0)
            images.append(pictures)
            waiting = torch.cat([waiting, pictures]) if len(waiting) else pictures
            while len(scores) < len(due) and due[len(scores)].stop <= start + len(pictures):
                run = due[len(scores)]
                count = run.stop - run.start
                job = (waiting[:count], *described(samples[run]))
                waiting = waiting[count:]
                scores.append(
                    rewards.score(*job) if pool is None else pool.submit(rewards.score, *job)
                )
    drawn = time.perf_counter()
    arrays = [s.result() if isinstance(s, Future) else s for s in scores]
    done = time.perf_counter()
    empty = np.zeros((len(rewards.names), 0))
    pictures = torch.cat(images) if images else torch.zeros(0, 3, 1, 1, dtype=torch.uint8)
    return Rollout(
        list(samples),
        torch.cat(latents) if latents else torch.zeros(0),
        pictures,
        np.concatenate(arrays, axis=1) if arrays else empty,
        drawn - started,
        done - drawn,
        {name: torch.cat([part[name] for part in kept]) for name in (kept[0] if kept else ())},
        None if pool is None else pool.submit(_measured, pictures.numpy()),
    )


def _sde(samples: Sequence[Sample], settings: SdeSettings, keep: bool) -> Sde:
    return Sde(
        [s.seed for s in samples],
        noise=settings.noise,
        window=settings.window,
        keep=keep,
    )


def described(samples: Sequence[Sample]) -> tuple[list[str], list[dict[str, Any]], list[int]]:
    """Prompts, metadata and groups, as rewards take them."""
    return (
        [s.prompt.text for s in samples],
        [dict(s.prompt.metadata) for s in samples],
        [s.group for s in samples],
    )


@torch.no_grad()
def draw(
    adapter: Adapter,
    samples: Sequence[Sample],
    *,
    steps: int,
    sampler: str | Sampler,
    guidance: float,
) -> tuple[Tensor, Tensor]:
    """Latents and uint8 pictures (on the CPU) of some samples, under the adapter in use."""
    cond = adapter.encode([s.prompt.text for s in samples])
    seeds = [s.seed for s in samples]
    if isinstance(sampler, Sde):
        seeds = [s.seed if s.start is None else s.start for s in samples]
    with adapter.preferring([s.prefer for s in samples]):
        x_0 = adapter.sample(cond, seeds, steps=steps, sampler=sampler, guidance=guidance)
    return x_0, adapter.decode(x_0).cpu()
