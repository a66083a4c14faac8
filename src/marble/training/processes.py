"""The processes of a run, as Accelerate launched them. One process needs no process group."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState

from marble.errors import LostProcess, MarbleError

T = TypeVar("T")

# A process may have to wait for another one's slow reward; that is no reason to abort.
PATIENCE = timedelta(hours=2)


# What a collective says when another process is gone; gloo has no exception of its own.
_GONE = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|nccl|socket", re.IGNORECASE)


def is_lost(error: BaseException) -> bool:
    """Whether an error tells that another process, or the way to it, is gone."""
    if isinstance(error, dist.DistError):  # of torch's store, NCCL and the like
        return True
    return type(error) is RuntimeError and _GONE.search(str(error)) is not None


class Processes:
    """Rank, size and the few collectives that the loop uses."""

    def __init__(self, device: str | None = None) -> None:
        cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
        try:
            self._state = PartialState(cpu=cpu, timeout=PATIENCE)
        except dist.DistError as error:
            place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise LostProcess(
                f"the other processes of the run cannot be reached at {place} "
                f"({str(error).splitlines()[0]}); see that every machine can reach it, and start "
                "them again"
            ) from error
        self.rank: int = self._state.process_index
        self.size: int = self._state.num_processes
        self.device: torch.device = self._state.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in rank order, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on some process: the processes must agree on when to stop."""
        return any(self.gather(flag))

    def together(self, work: Callable[[], T]) -> T:
        """Runs `work` on every process. Where it fails on one it fails on all, with one message.

        Otherwise the healthy ones would wait for the failed one in the next collective.
        """
        error: MarbleError | None = None
        result: T
        try:
            result = work()
        except MarbleError as caught:
            error = caught
        failures = [f for f in self.gather(None if error is None else str(error)) if f is not None]
        if error is not None:
            raise error
        if failures:
            raise MarbleError(failures[0])
        return result

    def from_main(self, work: Callable[[], T]) -> T:
        """What `work` gives on the main process, on all of them; its failure likewise."""
        return self.gather(self.together(lambda: work() if self.is_main else None))[0]

    def close(self) -> None:
        if self.size > 1:
            with suppress(RuntimeError):  # the others may be gone
                self._state.destroy_process_group()
