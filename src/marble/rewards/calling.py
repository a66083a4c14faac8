"""One call of one reward: within its deadline, on pictures that nobody else's code can change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.base import Metadata, RewardLike
from marble.rewards.groups import ask
from marble.rewards.guard import as_failure, contained, no_exit
from marble.rewards.isolated import Gone, Isolated


class TooLate(Exception):
    """No answer within the deadline."""


class Caller:
    """Calls rewards, and remembers which of them are still busy with a batch that was given up."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._late: dict[str, threading.Thread] = {}

    def call(
        self,
        reward: RewardLike,
        images: torch.Tensor,
        prompts: list[str],
        metadata: list[Metadata],
        groups: Sequence[Hashable],
        seconds: float | None,
    ) -> np.ndarray:
        """The reward's scores; raises whatever it raises, as an ordinary exception."""

        def work() -> np.ndarray:
            return ask(reward, images, prompts, metadata, groups)

        if isinstance(reward, Isolated):  # loading is not part of its time
            try:
                reward.prepare()
            except MarbleError as error:
                raise Gone(f"its process does not start again: {error}") from None
        with contained(lambda text: self._tell(reward.name, text)):
            return work() if seconds is None else self._within(seconds, reward, work)

    def _within(self, seconds: float, reward: RewardLike, work: Callable[[], Any]) -> Any:
        """Runs `work` in a thread and waits until the deadline; a late answer is thrown away.

        The thread is a daemon: a reward that hangs for ever must not keep the process alive. A
        reward that can end what it is doing (one in a process of its own) is told to; any other
        is not asked again before its thread is done, or threads would pile up.
        """
        if seconds <= 0:
            raise TooLate
        late = self._late.pop(reward.name, None)
        if late is not None:
            late.join(seconds)
            if late.is_alive():
                self._late[reward.name] = late
                raise TooLate
        box: list[Any] = []
        error: list[BaseException] = []
        # A new thread would begin on the first GPU, without a context of its own.
        gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def run() -> None:
            try:
                if gpu is not None:
                    torch.cuda.set_device(gpu)
                with no_exit():
                    box.append(work())
            except BaseException as caught:  # handed to the waiting thread
                error.append(as_failure(caught))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        if error:
            raise error[0]
        if box:
            return box[0]
        if isinstance(reward, Isolated):
            reward.abort()
        else:
            self._late[reward.name] = thread
        raise TooLate


class Handout:
    """Copies of a batch's pictures. Rewards that look at the same pictures share one, so that a
    shared encoder can recognise it and run once; a copy that was written into is thrown away."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images
        self._copies: dict[bytes, torch.Tensor] = {}

    def take(self, mask: np.ndarray) -> torch.Tensor:
        """The pictures under the mask; the same tensor as long as it is as drawn."""
        key = mask.tobytes()
        if key not in self._copies:
            self._copies[key] = self._drawn(mask).clone()
        return self._copies[key]

    def drop(self, mask: np.ndarray) -> None:
        """For a reward that is still at work on them: the next one gets another copy."""
        self._copies.pop(mask.tobytes(), None)

    def was_changed(self, mask: np.ndarray) -> bool:
        """Whether the copy differs from what was drawn; it is not handed out again then."""
        copy = self._copies.get(mask.tobytes())
        if copy is None or torch.equal(copy, self._drawn(mask)):
            return False
        self.drop(mask)
        return True

    def _drawn(self, mask: np.ndarray) -> torch.Tensor:
        if mask.all():
            return self.images
        return self.images[torch.from_numpy(mask).to(self.images.device)]


def copied(value: Any) -> Any:
    """Metadata as JSON has them, with nothing shared."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def remaining(until: float | None) -> float | None:
    """Seconds until a moment of the monotonic clock, at least 0; None without one."""
    return None if until is None else max(0.0, until - time.monotonic())
