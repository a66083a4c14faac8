"""The loop: rollout → rewards → advantages → balanced step → weights, logs, checkpoints."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marble.advantage import gather_rewards
from marble.balance import Batch, StepReport
from marble.data import GroupSampler, Sample
from marble.evaluation.canaries import canaries
from marble.models import lora
from marble.recipe import Recipe
from marble.training.checkpoint import State, load_optimizer_tensors, optimizer_tensors
from marble.training.guard import Guard
from marble.training.optimise import Part, Settings, split_epoch, take_step
from marble.training.processes import Processes
from marble.training.rollout import Rollout, make_rollout
from marble.training.rows import step_row
from marble.training.setup import Parts


class Trainer:
    """Holds a run's state and takes its epochs; writing about it is `Recorder`'s work."""

    def __init__(self, recipe: Recipe, parts: Parts, processes: Processes) -> None:
        self.recipe, self.parts, self.processes = recipe, parts, processes
        self.adapter, self.balancer = parts.adapter, parts.balancer
        self.parameters = parts.adapter.lora_parameters()
        self.ema = parts.adapter.lora_state()
        self.guard = Guard(fp16=parts.adapter.precision is torch.float16)
        self.balancer.scale = self.guard.scale
        self.step = self.epoch = 0
        self.settings = Settings(
            seed=recipe.train.seed,
            batch_size=recipe.train.batch_size,
            timesteps=recipe.timesteps_per_sample,
            kl=recipe.objective.kl,
            kl_every=recipe.objective.kl_every,
        )
        # The noise levels of the rollout, without the final 0: training uses the very same.
        self.sigmas = self.adapter.grid(recipe.rollout.steps)[:-1]
        self._pool = ThreadPoolExecutor(1) if recipe.train.overlap_rewards else None

    @property
    def finished(self) -> bool:
        return self.step >= self.recipe.train.steps

    def run_epoch(self) -> list[dict[str, Any]]:
        """One rollout and the optimiser steps on it; a row of metrics for each step."""
        rollout = self.rollout(self._sampler().epoch(self.epoch))
        gathered = gather_rewards(
            rollout.scores_Kn,
            np.array([s.group for s in rollout.samples], dtype=np.int64),
            np.array([s.index for s in rollout.samples], dtype=np.int64),
        )
        batch = self.balancer.batch(gathered.rewards_KN, gathered.group_N)
        rows = []
        train = self.recipe.train
        for inner in range(train.inner_epochs):
            for chosen in split_epoch(
                batch.size, train.steps_per_epoch, train.seed, self.epoch, inner
            ):
                if self.finished:
                    break
                rows.append(self._optimise(rollout, batch, gathered.local_n, chosen, inner))
        self.epoch += 1
        self.adapter.follow(self.recipe.rollout.old_decay.at(self.epoch))
        self.last = (rollout, batch)
        return rows

    def rollout(self, samples: list[Sample]) -> Rollout:
        """Pictures of this process's share of `samples`, drawn by the old policy, with scores."""
        settings = self.recipe.rollout
        return make_rollout(
            self.adapter,
            self.parts.rewards,
            self.processes.mine(samples),
            policy="old",
            steps=settings.steps,
            sampler=settings.sampler,
            guidance=settings.guidance,
            batch_size=settings.batch_size,
            pool=self._pool,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    # -- a step -----------------------------------------------------------------------------------

    def _optimise(
        self, rollout: Rollout, batch: Batch, local: torch.Tensor, chosen: np.ndarray, inner: int
    ) -> dict[str, Any]:
        started = time.perf_counter()
        positions = torch.from_numpy(chosen)
        here = torch.isin(local, positions).nonzero().flatten()
        part = Part(
            [rollout.samples[i] for i in here.tolist()],
            rollout.latents[here.to(rollout.latents.device)],
            torch.searchsorted(positions, local[here]),
        )
        selected = batch.select(positions)
        optimizer, step = self.parts.optimizer, self.step
        optimizer.zero_grad(set_to_none=True)
        for group in optimizer.param_groups:
            group["lr"] = self.recipe.optim.lr_at(step)
        report = take_step(
            self.adapter,
            self.balancer,
            selected,
            part,
            self.sigmas,
            self.settings,
            step=step,
            inner=inner,
        )
        applied = self._apply(report, part)
        self.step += 1
        row = step_row(
            self.recipe.rewards.names,
            batch,
            report,
            applied=applied,
            step=step,
            epoch=self.epoch,
            lr=optimizer.param_groups[0]["lr"],
        )
        seconds = time.perf_counter() - started
        row["time/refresh" if report.refreshed else "time/train"] = seconds
        row["grad_norm/update"] = self.guard.norm
        row["skipped"] = self.guard.skipped
        self._add_rollout(row, rollout, seconds)
        return row

    def _apply(self, report: StepReport, part: Part) -> dict[str, float] | None:
        """The optimiser's step, unless the guard finds the gradient unfit; harmony as applied."""
        parameters = list(self.parameters.values())
        if not self.guard.accepts(report, parameters, part.samples, self.recipe.optim.grad_clip):
            self.balancer.scale = self.guard.scale
            return None
        measured = report.harmony is not None
        before = {p: p.detach().clone() for p in parameters} if measured else {}
        self.parts.optimizer.step()
        lora.blend_(self.ema, self.parameters, self.recipe.optim.ema_decay(self.step))
        applied = None
        if measured:
            applied = self.balancer.applied({p: p.detach() - old for p, old in before.items()})
        self.balancer.scale = self.guard.scale
        return applied

    def _add_rollout(self, row: dict[str, Any], rollout: Rollout, seconds: float) -> None:
        total = rollout.seconds + rollout.reward_seconds + seconds
        row["time/rollout"], row["time/reward"] = rollout.seconds, rollout.reward_seconds
        row["images_per_s"] = len(rollout.samples) * self.processes.size / total
        if self.adapter.device.type == "cuda":
            row["memory_gb"] = torch.cuda.max_memory_allocated(self.adapter.device) / 1e9
        if len(rollout.images):
            groups = [s.group for s in rollout.samples]
            for name, values in canaries(rollout.images.numpy(), groups).items():
                row[f"canary/{name}"] = float(np.nanmean(values))

    def _sampler(self) -> GroupSampler:
        return next(s for start, s in reversed(self.parts.samplers) if start <= self.step)

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> State:
        """All that the next epoch depends on."""
        return State(
            {
                "live": self.adapter.lora_state("default"),
                "old": self.adapter.lora_state("old"),
                "ema": self.ema,
                "optimizer": optimizer_tensors(self.parts.optimizer),
                "gradients": self.balancer.tensors(),
            },
            {
                "step": self.step,
                "epoch": self.epoch,
                "balance": self.balancer.state_dict(),
                "guard": self.guard.state_dict(),
            },
        )

    def load(self, state: State) -> None:
        tensors = state.tensors
        self.adapter.load_lora_state("default", tensors["live"])
        self.adapter.load_lora_state("old", tensors["old"])
        self.ema = {name: tensors["ema"][name].to(t) for name, t in self.ema.items()}
        load_optimizer_tensors(self.parts.optimizer, tensors["optimizer"])
        self.balancer.load_tensors(tensors.get("gradients", {}))
        self.step, self.epoch = state.meta["step"], state.meta["epoch"]
        self.balancer.load_state_dict(state.meta["balance"])
        self.guard.load_state_dict(state.meta["guard"])

    def write_lora(self, folder: Path) -> None:
        """The averaged weights, which evaluation uses, as diffusers loads them."""
        self.adapter.save_lora(folder, values=self.ema if self.recipe.eval.ema else None)
