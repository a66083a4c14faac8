"""A log that nobody can fill: of lines of one kind only a few a minute are written."""

from __future__ import annotations

import logging
import time

LOGGERS = ("uvicorn.error", "asyncio", "marble.serve")


class Sparing(logging.Filter):
    """Lets `most` records of a kind through in `seconds`; the next one says how many were left out.

    Records are of one kind when they come from the same line of code.
    """

    def __init__(self, most: int = 10, seconds: float = 60.0) -> None:
        super().__init__()
        self.most, self.seconds = most, seconds
        self._kinds: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.pathname, record.lineno)
        began, count = self._kinds.get(kind, (0.0, 0))
        now = time.monotonic()
        if not count or now - began > self.seconds:
            left_out = count - self.most
            if left_out > 0:
                record.msg = f"{record.msg} ({left_out} more such lines were left out)"
            began, count = now, 0
        self._kinds[kind] = (began, count + 1)
        return count < self.most


def spare_the_log() -> None:
    """Of all loggers that a stranger's connections can make write."""
    for name in LOGGERS:
        log = logging.getLogger(name)
        if not any(isinstance(f, Sparing) for f in log.filters):
            log.addFilter(Sparing())
