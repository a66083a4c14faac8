"""Products of 16-bit matrices, summed and kept in fp32.

Operators of their own: compilers do not know torch's products with another output format, and would
cast both operands, which are activations, to fp32 and multiply those.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@torch.library.custom_op(
    "marble::wide_bmm", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor"
)
def wide_bmm(a: Tensor, b: Tensor) -> Tensor:
    """Batched product of 16-bit matrices in fp32."""
    if a.is_cuda and _gives_fp32(a.device, a.dtype):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


@wide_bmm.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2], dtype=torch.float32)


@torch.library.custom_op(
    "marble::wide_mm", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor"
)
def wide_mm(a: Tensor, b: Tensor) -> Tensor:
    """Product of two 16-bit matrices in fp32."""
    if a.is_cuda and _gives_fp32(a.device, a.dtype):
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a.float(), b.float())


@wide_mm.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32)


@functools.cache
def _gives_fp32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this GPU and this build of torch have such products (some for AMD have not)."""
    one = torch.zeros(16, 16, device=device, dtype=dtype)
    try:
        torch.mm(one, one, out_dtype=torch.float32)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):
        return False
    return True
