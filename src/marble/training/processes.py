"""The processes of a run, as Accelerate launched them. One process needs no process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor

T = TypeVar("T")


class Processes:
    """Rank, size and the few collectives that the loop uses."""

    def __init__(self, device: str | None = None) -> None:
        cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
        self._state = PartialState(cpu=cpu)
        self.rank: int = self._state.process_index
        self.size: int = self._state.num_processes
        self.device: torch.device = self._state.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[T]) -> list[T]:
        """This process's share, dealt like cards, so that shares differ by one item at most."""
        return list(items[self.rank :: self.size])

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in rank order, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sums each tensor over the processes, in place, in one collective."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on some process: the processes must agree on when to stop."""
        return any(self.gather(flag))

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        if self.size > 1:
            self._state.destroy_process_group()
