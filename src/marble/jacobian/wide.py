"""Weight gradients δᵀx of 16-bit δ and x, summed and kept in fp32.

Operators of their own: compilers do not know torch's products with another output format, and would
cast both operands, which are activations, to fp32 and multiply those. They take δ and x as the
layer has them: a compiler gives an operator of its own just the strides that it asks for, so that
a transposed operand would be a second copy of an activation.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@torch.library.custom_op(
    "marble::sample_gradients", mutates_args=(), schema="(Tensor delta, Tensor x) -> Tensor"
)
def sample_gradients(delta: Tensor, x: Tensor) -> Tensor:
    """[B, T, out], [B, T, in] → [B, out, in]: one gradient per sample."""
    if delta.is_cuda and _gives_fp32(delta.device, delta.dtype):
        return torch.bmm(delta.mT, x, out_dtype=torch.float32)
    return torch.bmm(delta.mT.float(), x.float())


@sample_gradients.register_fake
def _(delta: Tensor, x: Tensor) -> Tensor:
    shape = (delta.shape[0], delta.shape[-1], x.shape[-1])
    return delta.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op(
    "marble::weight_gradient", mutates_args=(), schema="(Tensor delta, Tensor x) -> Tensor"
)
def weight_gradient(delta: Tensor, x: Tensor) -> Tensor:
    """[…, out], […, in] → [out, in]: the sum over all samples and tokens."""
    if delta.dim() == 3 and not (_rows(delta) and _rows(x)):
        # Part of longer sequences: as one matrix it would have to be copied.
        return sample_gradients(delta, x).sum(0)
    left, right = delta.reshape(-1, delta.shape[-1]).t(), x.reshape(-1, x.shape[-1])
    if delta.is_cuda and _gives_fp32(delta.device, delta.dtype):
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.mm(left.float(), right.float())


@weight_gradient.register_fake
def _(delta: Tensor, x: Tensor) -> Tensor:
    return delta.new_empty(delta.shape[-1], x.shape[-1], dtype=torch.float32)


def _rows(tensor: Tensor) -> bool:
    """Whether [B, T, n] is a matrix of B·T rows as it lies."""
    return tensor.stride(0) == tensor.shape[1] * tensor.stride(1) or tensor.shape[0] == 1


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
