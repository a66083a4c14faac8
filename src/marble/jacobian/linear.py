"""The recorded linear layer: its backward yields one weight gradient *per sample*.

While recording, each covered layer computes ``y = x Wᵀ`` through an autograd Function with an
extra input, the *probe*: a tensor of shape [B, out, in] with zero strides (one element of
memory) that takes no part in the result. Backward hands it the B per-sample gradients
``δ_iᵀ x_i``. They leave the graph as an ordinary gradient, and a hook on the probe contracts
them with the K×B coefficients and frees them before the next layer's are computed. The Function
itself has no side effects and knows no coefficients, so checkpointing, ``torch.compile``, DDP
and FSDP2 may replay, trace or reorder it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marble.jacobian.wide import sample_gradients

PROBE = "marble_probe"
MAKE_PROBE = "marble_make_probe"


class PerSampleLinear(torch.autograd.Function):
    """``linear(x, weight)`` whose weight gradient goes, per sample, to ``probe``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, probe: Tensor) -> Tensor:
        device = x.device.type
        if torch.is_autocast_enabled(device):
            # Autocast is off in backward, so both passes get operands that are cast here.
            dtype = torch.get_autocast_dtype(device)
            inner, weight = x.to(dtype), weight.to(dtype)
        else:
            inner = x
        ctx.save_for_backward(inner, weight)
        ctx.x_dtype, ctx.probe_dtype = x.dtype, probe.dtype
        return F.linear(inner, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor]:
        (delta,) = grads
        x, weight = ctx.saved_tensors
        grad_x = delta.matmul(weight).to(ctx.x_dtype) if ctx.needs_input_grad[0] else None
        return grad_x, None, _per_sample(delta, x, ctx.probe_dtype)


def _per_sample(delta: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, out, in]: the sum over tokens of δxᵀ for every sample, summed and kept in ``dtype``.

    Rounding each sample's gradient to bf16 would cost more than one ordinary bf16 backward does,
    because samples of opposite advantage cancel afterwards.
    """
    batch = delta.shape[0]
    left, right = delta.reshape(batch, -1, delta.shape[-1]), x.reshape(batch, -1, x.shape[-1])
    if left.dtype == dtype:
        return torch.bmm(left.mT, right)
    if dtype == torch.float32:
        return sample_gradients(left, right)
    return torch.bmm(left.mT.to(dtype), right.to(dtype))


class Recorded:
    """Mixed in before a layer's own class while it is recorded."""

    weight: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        probe = getattr(self, PROBE, None)
        if probe is None or probe.shape[0] != x.shape[0]:
            probe = getattr(self, MAKE_PROBE)(x.shape[0])
        # Detached: the weight's own .grad, and DDP's or FSDP's hooks on it, stay out of this.
        # `low`: a copy of the weight in the format of the computation, where a layer keeps one.
        low = getattr(self, "low", None)
        return PerSampleLinear.apply(x, self.weight.detach() if low is None else low, probe)
