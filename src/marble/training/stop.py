"""Safe stops: a signal or the clock asks, the epoch finishes, the run saves and ends well."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from types import FrameType
from typing import Any


class StopRequest:
    """Set by SIGINT, SIGTERM or `max_hours`. A second SIGINT stops at once."""

    def __init__(self, max_hours: float | None) -> None:
        self.reason: str | None = None
        self._deadline = None if max_hours is None else time.monotonic() + 3600 * max_hours
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not the main thread: whoever owns it decides
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        if self.reason is None and self._deadline is not None and time.monotonic() > self._deadline:
            self.reason = "train.max_hours is over"
        return self.reason is not None

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
