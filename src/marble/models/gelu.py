"""GELU for compiled blocks: without a call of tanh, and in rollouts within the product before it.

½x(1 + tanh u) = x·σ(2u). A GPU has instructions for the exponential of σ and none for an exact
tanh: at SD3.5's size the one is bound by memory, the other takes half as long again. The two differ
by 1e-7 of x, in fp32.

While pictures are drawn (`drawing`), a GPU's matrix product takes its result through GELU before
writing it: at SD3.5's size 3 % of a forward pass. GELU then sees the product in fp32, not rounded
to 16 bits. Training rounds where uncompiled blocks do, so it does without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from diffusers.models.activations import GELU
from torch import Tensor, nn
from torch.nn import functional as F


class SigmoidGELU(GELU):
    """diffusers' projection and GELU; as it was, where the block is not compiled."""

    def gelu(self, gate: Tensor) -> Tensor:
        return sigmoid_gelu(gate) if torch.compiler.is_compiling() else super().gelu(gate)


class JoinedGELU(SigmoidGELU):
    """Both in one, where the projection is a plain layer in the format that it computes in. It has
    no gradient."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        layer, x = self.proj, hidden_states
        low = torch.is_autocast_enabled(x.device.type)
        computes = torch.get_autocast_dtype(x.device.type) if low else x.dtype
        plain = type(layer) is nn.Linear and type(layer.weight) is nn.Parameter  # not quantised
        if plain and layer.bias is not None and layer.weight.dtype == computes:
            return linear_gelu(x.to(computes), layer.weight, layer.bias)
        found: Tensor = super().forward(x)
        return found


def sigmoid_gelu(x: Tensor) -> Tensor:
    """GELU in its tanh approximation; computed in fp32, in the format of x."""
    wide = x.float()
    doubled = math.sqrt(8 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (wide * torch.sigmoid(doubled)).to(x.dtype)


@torch.library.custom_op("marble::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU(x·weightᵀ + bias), in its tanh approximation; one kernel on a GPU.

    An operation of its own, because torch's compiler takes torch's apart into product and GELU.
    """
    if x.device.type != "cuda":
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")
    rows = x.reshape(-1, x.shape[-1])
    found = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return found.view(*x.shape[:-1], len(weight))


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], len(weight)))


def use_sigmoid(model: nn.Module) -> None:
    """Gives the model's GELUs, where they are the tanh approximation, the forms above."""
    for module in model.modules():
        if type(module) is GELU and module.approximate == "tanh":
            module.__class__ = SigmoidGELU


@contextmanager
def drawing(model: nn.Module) -> Iterator[None]:
    """Inside, no pass is differentiated, and GELUs are computed with the product before them."""
    plain = [module for module in model.modules() if type(module) is SigmoidGELU]
    for module in plain:
        module.__class__ = JoinedGELU
    try:
        yield
    finally:
        for module in plain:
            module.__class__ = SigmoidGELU
