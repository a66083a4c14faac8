"""GELU for compiled blocks, without a call of tanh.

½x(1 + tanh u) = x·σ(2u). A GPU has instructions for the exponential of σ and none for an exact
tanh: at SD3.5's size the one is bound by memory, the other takes half as long again. The two differ
by 1e-7 of x, in fp32.
"""

from __future__ import annotations

import math

import torch
from diffusers.models.activations import GELU
from torch import Tensor, nn


class SigmoidGELU(GELU):
    """diffusers' projection and GELU; as it was, where the block is not compiled."""

    def gelu(self, gate: Tensor) -> Tensor:
        return sigmoid_gelu(gate) if torch.compiler.is_compiling() else super().gelu(gate)


def sigmoid_gelu(x: Tensor) -> Tensor:
    """GELU in its tanh approximation; computed in fp32, in the format of x."""
    wide = x.float()
    doubled = math.sqrt(8 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (wide * torch.sigmoid(doubled)).to(x.dtype)


def use_sigmoid(model: nn.Module) -> None:
    """Gives the model's GELUs, where they are the tanh approximation, the form above."""
    for module in model.modules():
        if type(module) is GELU and module.approximate == "tanh":
            module.__class__ = SigmoidGELU
