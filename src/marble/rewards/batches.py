"""Batches whose shape does not depend on how many pictures are asked for."""

from __future__ import annotations

from typing import TypeVar

import torch

Rows = TypeVar("Rows", torch.Tensor, list[str])


def filled(rows: Rows, size: int, dtype: torch.dtype) -> Rows:
    """The rows, and in reduced precision the last one again and again until there are `size`.

    A GPU chooses its kernels by the shape, and in 16 bits they round differently: without this, a
    picture's score would change with its company. In fp32 the change is below 1e-6, and nothing
    is added.
    """
    missing: int = size - len(rows)
    if dtype == torch.float32 or missing <= 0 or not len(rows):
        return rows
    if isinstance(rows, torch.Tensor):
        return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
    return [*rows, *rows[-1:] * missing]
