"""Reward models whose weights are kept in 16 bits and computed with in 32.

Computed in 16 bits, a score depends on the batch's shape and on the device, whose kernels round
differently: by up to 0.02 for PickScore at full size. The weights are what takes the memory, so
only they are rounded, and each layer widens its own while it works. A score is then that of the
rounded model in fp32, wherever and with whatever else it is computed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from marble.errors import MarbleError

_NAMES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _NAMES:
        raise MarbleError(f"unknown precision {dtype!r}; use fp32, bf16 or fp16")
    return _NAMES[dtype]


class WideLinear(nn.Linear):
    """A linear layer that computes in its input's precision, whatever its weights are kept in."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


def kept_in(model: Any, dtype: torch.dtype) -> Any:
    """Frozen `model`, computing in fp32, its linear layers (nearly all of it) kept in `dtype`."""
    model = model.eval().requires_grad_(False).float()
    if dtype != torch.float32:
        for layer in model.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = WideLinear
                layer.to(dtype)
    return model
