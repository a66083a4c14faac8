"""K gradients in flat fp32 rows: accumulation, inner products, linear combinations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

# Elements (K × columns) converted to fp64 at a time: bounds the temporaries of `gram` and `dot`.
CHUNK = 1 << 22


class Rows:
    """[S, K, total]: for each of S slots, K gradients over all ``total`` parameter elements.

    A slot is an independent part of the step's micro-batches; their sum is the step's gradient.
    """

    def __init__(
        self, slots: int, k: int, total: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.data = torch.zeros(slots, k, total, dtype=dtype, device=device)

    def add(self, slot: int, coef_KB: Tensor, grad_B: Tensor, start: int, stop: int) -> None:
        """``row_k[start:stop] += Σ_i coef_ki · grad_i``, in place, no K-fold temporary."""
        self.data[slot, :, start:stop].addmm_(coef_KB, grad_B.flatten(1))

    def zero(self) -> None:
        self.data.zero_()

    def all_reduce(self, group: dist.ProcessGroup | None) -> None:
        dist.all_reduce(self.data, group=group)

    def part(self, slot: int | None, start: int, stop: int) -> Tensor:
        """[K, stop − start] of one slot, or of the whole step (``None``)."""
        if slot is not None:
            return self.data[slot, :, start:stop]
        part = self.data[:, :, start:stop]
        return part[0] if part.shape[0] == 1 else part.sum(0)


def gram(rows: Rows, slot_a: int | None, slot_b: int | None) -> Tensor:
    """``G_kl = Σ_j a_kj b_lj`` of two slots' rows, in fp64, on the CPU."""
    k = rows.data.shape[1]
    out = rows.data.new_zeros(k, k, dtype=torch.float64)
    for start, stop in _chunks(rows):
        left = rows.part(slot_a, start, stop).double()
        right = left if slot_a == slot_b else rows.part(slot_b, start, stop).double()
        out.addmm_(left, right.T)
    return out.cpu()


def dot(rows: Rows, slot: int | None, vector: Tensor) -> Tensor:
    """``Σ_j row_kj vector_j`` for every k, in fp64, on the CPU."""
    out = rows.data.new_zeros(rows.data.shape[1], dtype=torch.float64)
    for start, stop in _chunks(rows):
        out.addmv_(rows.part(slot, start, stop).double(), vector[start:stop].double())
    return out.cpu()


def _chunks(rows: Rows) -> Iterator[tuple[int, int]]:
    _, k, total = rows.data.shape
    width = max(1, CHUNK // k)
    return ((start, min(start + width, total)) for start in range(0, total, width))
