"""K rewards on one batch: a [K, n] array with NaN where a reward does not apply, and no guesses."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError, RewardError
from marble.rewards.base import Metadata, Reward, RewardLike, as_reward, scope_of
from marble.rewards.calling import Caller, Handout, TooLate, copied, remaining
from marble.rewards.groups import WrongLength, accompanied, members
from marble.rewards.guard import as_failure, contained, said
from marble.rewards.health import HealthWatch, Silence
from marble.rewards.isolated import Gone, Isolated


@dataclass
class Outcome:
    """What one reward did with the latest batch."""

    applicable: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cause: str | None = None


class RewardSet:
    """Scores batches with several rewards and stops, or skips, when one of them fails.

    ``on_error="stop"`` raises a :class:`RewardError` that names reward, prompt and cause;
    ``"skip_sample"`` marks the sample inapplicable for that reward, and counts it. Either way no
    number is made up. ``deadline_s`` is the time each reward has for a batch.

    After :meth:`score`, ``outcomes`` says by reward what happened, ``skipped`` counts since the
    start, and :meth:`warnings` hands out what the health watch found.
    """

    def __init__(
        self,
        rewards: Sequence[RewardLike | Callable[..., Any]] | Mapping[str, Any],
        *,
        on_error: str = "stop",
        deadline_s: float | None = None,
        watch: bool = True,
    ) -> None:
        if on_error not in ("stop", "skip_sample"):
            raise MarbleError(f"rewards.on_error is {on_error!r}; use stop or skip_sample")
        if isinstance(rewards, Mapping):
            self.rewards = [as_reward(reward, name) for name, reward in rewards.items()]
        else:
            self.rewards = [as_reward(reward) for reward in rewards]
        self.names = [reward.name for reward in self.rewards]
        if len(set(self.names)) < len(self.names):
            raise MarbleError(f"two rewards have the same name: {', '.join(self.names)}")
        self.on_error, self.deadline_s = on_error, deadline_s
        self.outcomes: dict[str, Outcome] = {}
        self.skipped = dict.fromkeys(self.names, 0)
        self.silence = Silence()
        self._watches = (
            {r.name: HealthWatch(r.name, r.range) for r in self.rewards} if watch else {}
        )
        self._warnings: list[str] = []
        self._told: set[str] = set()
        self._caller = Caller(self._tell_once)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def compares(self) -> list[str]:
        """Rewards that look at a prompt's pictures together: a batch must not split a group."""
        return [reward.name for reward in self.rewards if scope_of(reward) != "picture"]

    def score(
        self,
        images: torch.Tensor,
        prompts: Sequence[str],
        metadata: Sequence[Metadata],
        groups: Sequence[Hashable] | None = None,
    ) -> np.ndarray:
        """float64 ``[K, n]``; NaN exactly where a reward does not apply or was skipped.

        ``groups`` says which pictures belong together, for rewards that compare; without it, those
        of the same prompt do.
        """
        groups = list(prompts) if groups is None else list(groups)
        _check_batch(images, prompts, metadata, groups)
        scores = np.full((len(self.rewards), len(prompts)), np.nan)
        handout = Handout(images)
        for k, reward in enumerate(self.rewards):
            began = time.perf_counter()
            # A copy for each reward: what one writes into it is no concern of the next.
            metas: list[Metadata] = [{**copied(m), "prompt": p} for m, p in zip(metadata, prompts)]
            outcome = self.outcomes[reward.name] = Outcome()
            applies = self._applies(reward, prompts, metas, groups, outcome)
            if applies.any():
                chosen = [int(i) for i in np.flatnonzero(applies)]
                task = _Task(
                    reward,
                    [prompts[i] for i in chosen],
                    [metas[i] for i in chosen],
                    [groups[i] for i in chosen],
                    handout,
                    applies,
                )
                scores[k, applies] = self._score_one(task, outcome)
                if handout.was_changed(applies):
                    self._tell_once(reward.name, _WRITES)
            outcome.seconds = time.perf_counter() - began
            self.skipped[reward.name] += outcome.skipped
            if isinstance(reward, Reward):
                self._warnings += [f"reward {reward.name}: {note}" for note in reward.take_notes()]
            if reward.name in self._watches:
                finite = scores[k][np.isfinite(scores[k])]
                self._warnings += self._watches[reward.name].feed(finite)
        return scores

    def _applies(
        self,
        reward: RewardLike,
        prompts: Sequence[str],
        metadata: list[Metadata],
        groups: Sequence[Hashable],
        outcome: Outcome,
    ) -> np.ndarray:
        applies = np.zeros(len(prompts), dtype=bool)
        bad = np.zeros(len(prompts), dtype=bool)
        cause = ""
        with contained(lambda text: self._tell_once(reward.name, text)):
            for i, meta in enumerate(metadata):
                try:
                    applies[i] = applicable(reward, meta)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    bad[i], cause = True, f"{said(as_failure(error))} (in applies)"
                    if self.on_error == "stop":
                        raise RewardError(_message(reward.name, prompts[i], cause)) from error
        if scope_of(reward) != "picture":
            applies = accompanied(groups, applies)
        outcome.applicable = int(applies.sum()) + int(bad.sum())
        if bad.any():
            self._skip_or_stop(reward, list(prompts), np.zeros(len(bad)), cause, outcome, bad)
        return applies

    def _score_one(self, task: _Task, outcome: Outcome) -> np.ndarray:
        reward, prompts = task.reward, task.prompts
        until = None if self.deadline_s is None else time.monotonic() + self.deadline_s
        blank = np.full(len(prompts), np.nan)
        try:
            values = task.ask(self._caller, remaining(until))
        except TooLate:
            task.handout.drop(task.applies)  # it may still be writing into this one
            cause = f"no answer within {self.deadline_s:g} s"
            return self._skip_or_stop(reward, prompts, blank, cause, outcome)
        except (WrongLength, Gone) as error:
            return self._skip_or_stop(reward, prompts, blank, str(error), outcome)
        except Exception as error:
            return self._one_by_one(task, until, error, outcome)
        bad = _not_scores(reward, values)
        if bad.any():
            cause = f"returned {values[bad][0]}"
            values[bad] = np.nan
            return self._skip_or_stop(reward, prompts, values, cause, outcome, bad)
        return values

    def _one_by_one(
        self, task: _Task, until: float | None, error: Exception, outcome: Outcome
    ) -> np.ndarray:
        """After a failed batch: find the sample (or group) at fault, or score those that can be."""
        reward, prompts = task.reward, task.prompts
        if task.handout.was_changed(task.applies):
            self._tell_once(reward.name, _WRITES)
        values, failed, cause = np.full(len(prompts), np.nan), 0, said(error)
        bad = np.ones(len(prompts), dtype=bool)
        for rows in task.units():
            try:
                value = task.ask(self._caller, remaining(until), rows)
                if _not_scores(reward, value).any():
                    raise ValueError(f"returned {value[_not_scores(reward, value)][0]}")
                values[rows], bad[rows], failed = value, False, 0
            except Exception as single:
                failed, cause = failed + 1, said(single)
                if isinstance(single, TooLate):
                    task.handout.drop(task.applies)
                    cause = f"no answer within {self.deadline_s:g} s"
                if self.on_error == "stop":
                    raise RewardError(_message(reward.name, prompts[rows[0]], cause)) from single
            if failed == 3:  # not this sample's fault: leave the rest, do not ask a dead reward
                break
        if self.on_error == "stop":  # alone, every sample passes: the batch is what failed
            cause = f"{said(error)} (on {len(prompts)} pictures at once)"
            raise RewardError(_message(reward.name, prompts[0], cause)) from error
        return self._skip_or_stop(reward, prompts, values, cause, outcome, bad)

    def _skip_or_stop(
        self,
        reward: RewardLike,
        prompts: list[str],
        values: np.ndarray,
        cause: str,
        outcome: Outcome,
        bad: np.ndarray | None = None,
    ) -> np.ndarray:
        bad = np.isnan(values) if bad is None else bad
        if self.on_error == "stop":
            raise RewardError(_message(reward.name, prompts[int(np.argmax(bad))], cause))
        skipped = int(bad.sum())
        outcome.skipped, outcome.cause = outcome.skipped + skipped, cause
        if skipped:
            self._warnings.append(
                f"reward {reward.name}: skipped {skipped} of {len(prompts)}: {cause}"
            )
        return values

    def _tell_once(self, name: str, text: str) -> None:
        line = f"reward {name}: {text}"
        if line not in self._told:
            self._told.add(line)
            self._warnings.append(line)

    def note(self, line: str) -> None:
        """Something about these rewards that the user should read, found elsewhere."""
        self._warnings.append(line)

    def warnings(self) -> list[str]:
        """What was found since the last call; empties the list."""
        found = list(self._warnings)
        self._warnings.clear()
        return found

    def unwatched(self, names: Sequence[str] | None = None) -> RewardSet:
        """The same rewards and counts, for pictures that say nothing about a reward's health.

        ``names``: only those of them.
        """
        other = copy.copy(self)
        other._watches = {}
        if names is not None:
            other.rewards = [r for r in self.rewards if r.name in names]
            other.names = [r.name for r in other.rewards]
        return other

    @property
    def watched(self) -> bool:
        return bool(self._watches)

    def to(self, device: str | torch.device) -> RewardSet:
        self.rewards = [reward.to(device) for reward in self.rewards]
        return self

    def close(self) -> None:
        """Ends the processes of rewards that have one."""
        for reward in self.rewards:
            if isinstance(reward, Isolated):
                reward.close()

    def state_dict(self) -> dict[str, Any]:
        """JSON-friendly: skip counts and the health watch, for exact resume."""
        watches = {name: watch.state_dict() for name, watch in self._watches.items()}
        silence = self.silence.state_dict()
        return {"skipped": dict(self.skipped), "watches": watches, "silence": silence}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped.update(state["skipped"])
        self.silence.load_state_dict(state.get("silence", {}))
        for name, watch in state["watches"].items():
            if name in self._watches:
                self._watches[name].load_state_dict(watch)


@dataclass(frozen=True)
class _Task:
    """The part of a batch that a reward applies to."""

    reward: RewardLike
    prompts: list[str]
    metadata: list[Metadata]
    groups: list[Hashable]
    handout: Handout
    applies: np.ndarray

    def units(self) -> list[list[int]]:
        """What can be scored by itself: a picture, or all those of a prompt."""
        if scope_of(self.reward) == "picture":
            return [[i] for i in range(len(self.prompts))]
        return members(self.groups)

    def ask(
        self, caller: Caller, seconds: float | None, rows: list[int] | None = None
    ) -> np.ndarray:
        """Its scores of these rows (default: all), given copies of everything."""
        images = self.handout.take(self.applies)
        if rows is None:
            rows = list(range(len(self.prompts)))
        else:
            images = images[rows]
        return caller.call(
            self.reward,
            images,
            [self.prompts[i] for i in rows],
            [copied(self.metadata[i]) for i in rows],
            [self.groups[i] for i in rows],
            seconds,
        )


_WRITES = (
    "writes into the pictures it is given; the other rewards still see them as drawn. "
    "Let it work on a copy (images.clone())"
)


def applicable(reward: RewardLike, metadata: Metadata) -> bool:
    """Whether the reward is meant for this sample's source and says it applies."""
    sources = getattr(reward, "sources", None)
    if sources is not None and metadata.get("source") not in sources:
        return False
    return bool(reward.applies(metadata))


def _not_scores(reward: RewardLike, values: np.ndarray) -> np.ndarray:
    """Infinite values, and NaN too unless the reward may abstain by it."""
    bad = ~np.isfinite(values)
    return bad & ~np.isnan(values) if getattr(reward, "may_abstain", False) else bad


def _check_batch(
    images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[Any], groups: Sequence[Any]
) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise MarbleError(
            f"rewards take uint8 pictures [n, 3, H, W], not {images.dtype} {tuple(images.shape)}"
        )
    if not len(images) == len(prompts) == len(metadata) == len(groups):
        raise MarbleError(
            f"{len(images)} pictures, {len(prompts)} prompts, {len(metadata)} metadata and "
            f"{len(groups)} groups: one of each per sample"
        )


def _message(name: str, prompt: str, cause: str) -> str:
    shown = prompt if len(prompt) <= 120 else prompt[:117] + "…"
    return f"reward {name} failed on {shown!r}: {cause}"
