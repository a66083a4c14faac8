"""K rewards on one batch: a [K, n] array with NaN where a reward does not apply, and no guesses."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError, RewardError
from marble.rewards.base import Metadata, RewardLike, as_reward
from marble.rewards.health import HealthWatch
from marble.rewards.place import place


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
        self._watches = (
            {r.name: HealthWatch(r.name, r.range) for r in self.rewards} if watch else {}
        )
        self._warnings: list[str] = []

    def __len__(self) -> int:
        return len(self.rewards)

    def score(
        self, images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> np.ndarray:
        """float64 ``[K, n]``; NaN exactly where a reward does not apply or was skipped."""
        _check_batch(images, prompts, metadata)
        metadata = [{**meta, "prompt": prompt} for meta, prompt in zip(metadata, prompts)]
        scores = np.full((len(self.rewards), len(prompts)), np.nan)
        parts: dict[bytes, torch.Tensor] = {}
        for k, reward in enumerate(self.rewards):
            began = time.perf_counter()
            applies = np.array([applicable(reward, meta) for meta in metadata], dtype=bool)
            outcome = self.outcomes[reward.name] = Outcome(applicable=int(applies.sum()))
            if applies.any():
                # Rewards that look at the same pictures get the same tensor, so that a shared
                # encoder can recognise it and run once.
                part = parts.setdefault(applies.tobytes(), _take_images(images, applies))
                chosen = np.flatnonzero(applies)
                texts = [prompts[int(i)] for i in chosen]
                metas = [metadata[int(i)] for i in chosen]
                scores[k, applies] = self._score_one(reward, part, texts, metas, outcome)
            outcome.seconds = time.perf_counter() - began
            self.skipped[reward.name] += outcome.skipped
            if reward.name in self._watches:
                finite = scores[k][np.isfinite(scores[k])]
                self._warnings += self._watches[reward.name].feed(finite)
        return scores

    def _score_one(
        self,
        reward: RewardLike,
        images: torch.Tensor,
        prompts: list[str],
        metadata: list[Metadata],
        outcome: Outcome,
    ) -> np.ndarray:
        until = None if self.deadline_s is None else time.monotonic() + self.deadline_s
        blank = np.full(len(prompts), np.nan)
        try:
            values = _call(reward, images, prompts, metadata, until)
        except _TooLate:
            cause = f"no answer within {self.deadline_s:g} s"
            return self._skip_or_stop(
                reward, prompts, np.full(len(prompts), np.nan), cause, outcome
            )
        except _WrongLength as error:
            return self._skip_or_stop(reward, prompts, blank, str(error), outcome)
        except Exception as error:
            return self._one_by_one(reward, images, prompts, metadata, until, error, outcome)
        bad = _not_scores(reward, values)
        if bad.any():
            cause = f"returned {values[bad][0]}"
            values[bad] = np.nan
            return self._skip_or_stop(reward, prompts, values, cause, outcome, bad)
        return values

    def _one_by_one(
        self,
        reward: RewardLike,
        images: torch.Tensor,
        prompts: list[str],
        metadata: list[Metadata],
        until: float | None,
        error: Exception,
        outcome: Outcome,
    ) -> np.ndarray:
        """After a failed batch: find the sample at fault, or score those that can be scored."""
        values, failed, cause = np.full(len(prompts), np.nan), 0, _said(error)
        bad = np.ones(len(prompts), dtype=bool)
        for i in range(len(prompts)):
            one = slice(i, i + 1)
            try:
                value = _call(reward, images[one], prompts[one], metadata[one], until)
                if _not_scores(reward, value).any():
                    raise ValueError(f"returned {value[0]}")
                values[i], bad[i], failed = value[0], False, 0
            except Exception as single:
                failed, cause = failed + 1, _said(single)
                if self.on_error == "stop":
                    raise RewardError(_message(reward.name, prompts[i], cause)) from single
            if failed == 3:  # not this sample's fault: leave the rest, do not ask a dead reward
                break
        if self.on_error == "stop":  # alone, every sample passes: the batch is what failed
            cause = f"{_said(error)} (on {len(prompts)} pictures at once)"
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
        outcome.skipped, outcome.cause = int(bad.sum()), cause
        if outcome.skipped:
            self._warnings.append(
                f"reward {reward.name}: skipped {outcome.skipped} of {len(prompts)}: {cause}"
            )
        return values

    def warnings(self) -> list[str]:
        """What was found since the last call; empties the list."""
        found, self._warnings = self._warnings, []
        return found

    def unwatched(self) -> RewardSet:
        """The same rewards and counts, for pictures that say nothing about a reward's health."""
        other = copy.copy(self)
        other._watches = {}
        return other

    def to(self, device: str | torch.device) -> RewardSet:
        self.rewards = [reward.to(device) for reward in self.rewards]
        return self

    def state_dict(self) -> dict[str, Any]:
        """JSON-friendly: skip counts and the health watch, for exact resume."""
        watches = {name: watch.state_dict() for name, watch in self._watches.items()}
        return {"skipped": dict(self.skipped), "watches": watches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped.update(state["skipped"])
        for name, watch in state["watches"].items():
            if name in self._watches:
                self._watches[name].load_state_dict(watch)


class _TooLate(Exception):
    pass


class _WrongLength(Exception):
    pass


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


def _call(
    reward: RewardLike,
    images: torch.Tensor,
    prompts: list[str],
    metadata: list[Metadata],
    until: float | None,
) -> np.ndarray:
    if until is None:
        raw = reward.score(images, prompts, metadata)
    else:
        raw = _within(until, lambda: reward.score(images, prompts, metadata))
    if isinstance(raw, torch.Tensor):
        raw = raw.detach().double().cpu().numpy()
    if not isinstance(raw, np.ndarray):
        raw = [np.nan if value is None else value for value in raw]
    values = np.array(raw, dtype=np.float64)
    if values.shape != (len(prompts),):
        raise _WrongLength(f"returned shape {values.shape} for {len(prompts)} pictures")
    return values


def _within(until: float, work: Callable[[], Any]) -> Any:
    """Run ``work`` in a thread and wait until the deadline; a late answer is thrown away.

    The thread is a daemon: a reward that hangs for ever must not keep the process alive.
    """
    box: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            box.append(work())
        except BaseException as caught:  # handed to the waiting thread
            error.append(caught)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(0.0, until - time.monotonic()))
    if error:
        raise error[0]
    if not box:
        raise _TooLate
    return box[0]


def _check_batch(images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[Any]) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise MarbleError(
            f"rewards take uint8 pictures [n, 3, H, W], not {images.dtype} {tuple(images.shape)}"
        )
    if not len(images) == len(prompts) == len(metadata):
        raise MarbleError(
            f"{len(images)} pictures, {len(prompts)} prompts and {len(metadata)} metadata: "
            "one of each a sample"
        )


def _take_images(images: torch.Tensor, mask: np.ndarray) -> torch.Tensor:
    return images if mask.all() else images[torch.from_numpy(mask).to(images.device)]


def _said(error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    where = place(error)
    return f"{where}: {said}" if where else said


def _message(name: str, prompt: str, cause: str) -> str:
    shown = prompt if len(prompt) <= 120 else prompt[:117] + "…"
    return f"reward {name} failed on {shown!r}: {cause}"
