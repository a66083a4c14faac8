"""The loop: rollout → rewards → advantages → balanced step → weights, logs, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marble.advantage import gather_rewards
from marble.balance import Batch, StepReport
from marble.data import GroupSampler, Sample
from marble.evaluation.drift import diversity
from marble.models import lora
from marble.recipe import Recipe
from marble.training import random_state, state
from marble.training.checkpoint import State
from marble.training.dealing import shares
from marble.training.evaluate import evaluate_policy, meant_for
from marble.training.extremes import extremes, sizes
from marble.training.guard import Guard
from marble.training.memory import fitted
from marble.training.opposed import Opposed
from marble.training.optimise import Part, Settings, split_epoch, take_step
from marble.training.paired import base_scores, choose, own_scores
from marble.training.preferences import with_preferences
from marble.training.processes import Processes
from marble.training.rollout import Rollout, make_rollout, scoring_thread
from marble.training.rows import step_row
from marble.training.setup import Parts
from marble.training.watch import Look, Watch


@dataclass(frozen=True)
class Epoch:
    """All samples of an epoch, this process's pictures of them, and everyone's advantages.

    local: where this process's samples stand among all of them.
    """

    samples: list[Sample]
    rollout: Rollout
    batch: Batch
    rewards_KN: torch.Tensor
    local: torch.Tensor


class Trainer:
    """Holds a run's state and takes its epochs; writing about it is `Recorder`'s work."""

    def __init__(self, recipe: Recipe, parts: Parts, processes: Processes) -> None:
        recipe = fitted(recipe, processes.device, processes.size)
        assert recipe.train.batch_size is not None
        self.recipe, self.parts, self.processes = recipe, parts, processes
        self.adapter, self.balancer = parts.adapter, parts.balancer
        self.parameters = parts.adapter.lora_parameters()
        self.ema = parts.adapter.lora_state()
        self.guard = Guard(fp16=parts.adapter.precision is torch.float16)
        self.balancer.scale = self.guard.scale
        self.watch = Watch(
            recipe.rewards.names,
            [s.prompt.text for s in parts.probe_samples],
            counted=recipe.trained_rewards,
            criterion=recipe.train.best_by,
        )
        self.opposed = Opposed(recipe.rewards.names)
        self.lr_scale = 1.0
        """Halved by each return to the best checkpoint."""
        self.step = self.epoch = 0
        self.settings = Settings(
            seed=recipe.train.seed,
            batch_size=recipe.train.batch_size,
            pairs=self.balancer.objective.pairs(recipe),
            kl=recipe.objective.kl,
            kl_every=recipe.objective.kl_every,
        )
        # The noise levels of the rollout, without the final 0: training uses the very same.
        self.sigmas = self.adapter.grid(recipe.rollout.steps)[:-1]
        overlap = recipe.train.overlap_rewards
        self._pool = scoring_thread(self.adapter.device) if overlap else None
        self._drift: dict[str, float] | None = None
        self.warnings: list[str] = []
        """What went wrong in the last epoch and was survived, on any process."""
        random_state.seed(recipe.train.seed, processes.rank)

    @property
    def finished(self) -> bool:
        return self.step >= self.recipe.train.steps

    def run_epoch(self) -> list[dict[str, Any]]:
        """One rollout and the optimiser steps on it; a row of metrics for each step."""
        skipped = dict(self.parts.rewards.skipped)
        epoch = self.draw(self._sampler().epoch(self.epoch))
        seen = self._observe_pairs(epoch)
        skips, self.warnings = self._look_at_rewards(skipped)
        self.warnings += self._silent_rewards(epoch.samples, epoch.rewards_KN)
        self._drift = None
        if seen:
            self.warnings += self.balancer.harmoniser.doubts(self.epoch)
        rows: list[dict[str, Any]] = []
        train = self.recipe.train
        # The last `follow` had this decay: with 0, v_old is v_θ until the first step moves it.
        followed = self.recipe.rollout.old_decay.at(self.epoch) == 0
        for inner in range(train.inner_epochs):
            for chosen in self.split(epoch, self.epoch, inner):
                if self.finished:
                    break
                row = self._optimise(epoch, chosen, inner, followed and not rows)
                rows.append(row | skips | seen)
                seen = {}
        self.epoch += 1
        self.adapter.follow(self.recipe.rollout.old_decay.at(self.epoch))
        if self.adapter.compiled is not None:
            self.adapter.compiled.tell()
        self.last = (epoch.rollout, epoch.batch)
        self.scored = (epoch.samples, epoch.rewards_KN)
        return rows

    def draw(self, samples: list[Sample]) -> Epoch:
        """Pictures of all `samples`, each on one process, their scores and advantages."""
        samples, prefer_KN = with_preferences(
            samples, self.balancer.harmoniser.rule, self.parts.rewards, self.settings.seed
        )
        rollout = self.processes.together(lambda: self.rollout(samples))
        gathered = gather_rewards(
            rollout.scores_Kn,
            np.array([s.group for s in rollout.samples], dtype=np.int64),
            np.array([s.index for s in rollout.samples], dtype=np.int64),
        )
        batch = self.balancer.batch(gathered.rewards_KN, gathered.group_N, prefer_KN)
        asked = self.balancer.objective.asked(
            batch.adv.adv_KN,
            samples,
            names=self.recipe.rewards.names,
            narrow_K=[reward.sources is not None for reward in self.recipe.rewards.train],
            seed=self.settings.seed,
        )
        batch = batch.asking(asked)
        if self.recipe.train.extremes < 1:
            batch = batch.seen()
        return Epoch(samples, rollout, batch, gathered.rewards_KN, gathered.local_n)

    def split(self, epoch: Epoch, number: int, inner: int) -> Iterator[np.ndarray]:
        """The positions of the samples trained on, dealt to the epoch's optimiser steps."""
        kept = self.trained(epoch)
        parts = split_epoch(
            len(kept),
            self.recipe.train.steps_per_epoch,
            self.settings.seed,
            number,
            inner,
            together=self.balancer.objective.together,
        )
        return (kept[part] for part in parts)

    def trained(self, epoch: Epoch) -> np.ndarray:
        """Positions of the samples that are trained on: all, or the extremes of every group."""
        share, balancer = self.recipe.train.extremes, self.balancer
        if share == 1:
            return np.arange(epoch.batch.size)
        merged = balancer.merges is not None
        size_N = sizes(epoch.batch, balancer.gate(self.step), merged=merged)
        groups = [sample.group for sample in epoch.samples]
        return extremes(size_N, groups, share, together=balancer.objective.together)

    def _observe_pairs(self, epoch: Epoch) -> dict[str, float]:
        """Draws some of the epoch's pictures from the base too, where the rule asks for such pairs.
        Before the first step both would be the same."""
        count = self.balancer.harmoniser.paired
        if self.step == 0 or not count:
            return {}
        started = time.perf_counter()
        rewards = self.parts.rewards
        at = choose(epoch.samples, count, compared=bool(rewards.compares))
        chosen = [epoch.samples[i] for i in at]
        own_Kn = epoch.rewards_KN.numpy()[:, at]
        own_Kn = own_scores(rewards, epoch.rollout, chosen, own_Kn, self.processes)
        base_Kn = base_scores(self.adapter, rewards, chosen, self.recipe, self.processes)
        found = self.balancer.harmoniser.observe_pairs(own_Kn, base_Kn)
        row: dict[str, float] = {}
        for k, name in enumerate(self.recipe.rewards.names):
            row |= {f"{key}/{name}": float(values[k]) for key, values in found.items()}
        return row | {"time/paired": time.perf_counter() - started}

    def rollout(self, samples: list[Sample]) -> Rollout:
        """Pictures of this process's share of `samples`, drawn by the old policy, with scores."""
        settings = self.recipe.rollout
        assert settings.batch_size is not None  # `fitted`
        return make_rollout(
            self.adapter,
            self.parts.rewards,
            self._mine(samples),
            policy="old",
            steps=settings.steps,
            sampler=settings.sampler,
            guidance=settings.guidance,
            batch_size=settings.batch_size,
            pool=self._pool,
            sde=settings.sde,
            keep_path=self.balancer.objective.keeps_path,
            fp8=settings.fp8,
        )

    def _mine(self, samples: list[Sample]) -> list[Sample]:
        """This process's share; whole groups where a reward compares their pictures."""
        whole = bool(self.parts.rewards.compares)
        dealt = shares(
            samples,
            self.processes.size,
            whole_groups=whole,
            together=self.balancer.objective.together,
        )
        return [samples[i] for i in dealt[self.processes.rank]]

    def _silent_rewards(self, samples: list[Sample], scores_KN: torch.Tensor) -> list[str]:
        """Words on rewards that scored nothing in an epoch that had prompts for them."""
        rewards, after = self.parts.rewards, self.recipe.rewards.silent_epochs
        found = [
            rewards.silence.feed(
                reward.name, int(scores_KN[k].isfinite().sum()), meant_for(reward, samples), after
            )
            for k, reward in enumerate(rewards.rewards)
        ]
        return [text for text in found if text]

    # -- the probe ----------------------------------------------------------------------------

    def start_watch(self) -> None:
        """Scores the untouched model on the probe."""
        if self.parts.probe_samples:
            self.watch.start(*self._probe("base"))

    def look(self) -> Look | None:
        """How the model stands on the probe; None where nothing is watched."""
        return self.watch.look(self.step, *self._probe("trained")) if self.watch.started else None

    def _probe(self, policy: str) -> tuple[np.ndarray, float]:
        """Scores [K, n] of the probe's pictures, and how much those of one prompt differ."""
        adapter, samples = self.adapter, self.parts.probe_samples
        average = policy == "trained" and self.recipe.eval.ema
        with adapter.swapped(self.ema if average else adapter.lora_state()):
            found = evaluate_policy(
                adapter,
                [self.parts.rewards.unwatched()],
                samples,
                self.recipe,
                self.processes,
                policy="default" if policy == "trained" else "base",
            )
        scores = np.stack([found.scores[name] for name in self.recipe.rewards.names])
        spread = diversity(found.images.numpy(), [s.group for s in samples])
        return scores, float(np.mean(spread))

    def _look_at_rewards(self, before: dict[str, int]) -> tuple[dict[str, int], list[str]]:
        """How many samples each reward skipped, and what looked wrong, on all processes."""
        rewards = self.parts.rewards
        own = [rewards.skipped[name] - before[name] for name in rewards.names]
        everyone = self.processes.gather((own, rewards.warnings()))
        warnings = list(dict.fromkeys(text for _, texts in everyone for text in texts))
        totals = np.sum([counts for counts, _ in everyone], axis=0).tolist()
        return {f"reward/{name}/skipped": n for name, n in zip(rewards.names, totals)}, warnings

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for rewards in (self.parts.rewards, self.parts.heldout):
            if rewards is not None:
                rewards.close()

    # -- a step -----------------------------------------------------------------------------------

    def gradient(
        self, epoch: Epoch, chosen: np.ndarray, step: int, inner: int, *, on_policy: bool
    ) -> StepReport:
        """Leaves the gradient of a step on the samples at `chosen` in `.grad`; takes no step."""
        rollout, positions = epoch.rollout, torch.from_numpy(chosen)
        here = torch.isin(epoch.local, positions).nonzero().flatten()
        part = Part(
            [rollout.samples[i] for i in here.tolist()],
            rollout.latents[here.to(rollout.latents.device)],
            {name: kept[here.to(kept.device)] for name, kept in rollout.kept.items()},
            torch.searchsorted(positions, epoch.local[here]),
        )
        self.parts.optimizer.zero_grad(set_to_none=True)
        return take_step(
            self.adapter,
            self.balancer,
            epoch.batch.select(positions),
            part,
            self.sigmas,
            self.settings,
            step=step,
            inner=inner,
            on_policy=on_policy,
        )

    def _optimise(
        self, epoch: Epoch, chosen: np.ndarray, inner: int, on_policy: bool
    ) -> dict[str, Any]:
        started = time.perf_counter()
        optimizer, step = self.parts.optimizer, self.step
        for group in optimizer.param_groups:
            group["lr"] = self.lr_scale * self.recipe.optim.lr_at(step, self.recipe.train.steps)
        report = self.gradient(epoch, chosen, step, inner, on_policy=on_policy)
        applied = self._apply(report, [epoch.samples[i] for i in chosen])
        self.step += 1
        row = step_row(
            self.recipe.rewards.names,
            epoch.batch,
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
        if self.guard.message:
            self.warnings.append(f"step {self.step} skipped: {self.guard.message}")
        self.warnings += self.guard.spikes(report)
        for pair, words in self.opposed.look(report):
            left_out = self.watch.leave_out(pair)
            self.warnings.append(
                words + (" Neither counts for checkpoints/best from here on." if left_out else "")
            )
        if self.warnings:
            row["notes"] = row.get("notes", []) + self.warnings
        here, all_here = (
            int(torch.isin(epoch.local, torch.from_numpy(at)).sum())
            for at in (chosen, self.trained(epoch))
        )
        self._add_rollout(row, epoch.rollout, here / max(1, all_here), seconds)
        return row

    def _apply(self, report: StepReport, samples: list[Sample]) -> dict[str, float] | None:
        """The optimiser's step, unless the guard finds the gradient unfit; harmony as applied."""
        parameters = list(self.parameters.values())
        if not self.guard.accepts(report, parameters, samples, self.recipe.optim.grad_clip):
            self.balancer.scale = self.guard.scale
            return None
        measured = report.harmony is not None
        before = {p: p.detach().clone() for p in parameters} if measured else {}
        self.parts.optimizer.step()
        lora.blend_(self.ema, self.parameters, self.recipe.optim.ema_decay(self.step + 1))
        applied = None
        if measured:
            applied = self.balancer.applied({p: p.detach() - old for p, old in before.items()})
        self.balancer.scale = self.guard.scale
        return applied

    def _add_rollout(self, row: dict[str, Any], rollout: Rollout, part: float, took: float) -> None:
        """Times and statistics of the rollout; a step on that `part` of what is trained has its
        share."""
        row["time/rollout"], row["time/reward"] = rollout.seconds, rollout.reward_seconds
        share = part / self.recipe.train.inner_epochs
        seconds = (rollout.seconds + rollout.reward_seconds) * share + took
        row["images_per_s"] = len(rollout.samples) * share * self.processes.size / seconds
        if self.adapter.device.type == "cuda":
            row["memory_gb"] = torch.cuda.max_memory_allocated(self.adapter.device) / 1e9
        if self.adapter.compiled is not None:
            row |= self.adapter.compiled.counts
        if self._drift is None:
            self._drift = rollout.drift_statistics(self.processes)
        row |= self._drift

    def _sampler(self) -> GroupSampler:
        return next(s for start, s in reversed(self.parts.samplers) if start <= self.step)

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> State:
        """All that the next epoch depends on; every process takes part."""
        return state.capture(self)

    def load(self, saved: State) -> list[str]:
        """Goes back to a saved state; notes on what cannot be the same, if anything."""
        return state.restore(self, saved)

    def go_back(self, saved: State) -> None:
        """Takes the policy of a checkpoint, and half the learning rate from here on."""
        state.restore_policy(self, saved)
        self.lr_scale /= 2
        self.watch.rollbacks += 1
        self.watch.doubts = 0

    def write_lora(self, folder: Path) -> None:
        """The averaged weights, which evaluation uses, as diffusers loads them."""
        self.adapter.save_lora(folder, values=self.ema if self.recipe.eval.ema else None)
