"""Rollouts with the frozen matrix products in fp8: twice the rate of bf16 on a GPU that has it.

Weights and activations are rounded to e4m3 (three bits of mantissa) with one scale per row: per
output of a layer, and per token. Weights are rounded once per rollout, the LoRA inside them as in
bf16; activations in every call, which compiled blocks do in one pass over them. Results are bf16.
Each factor is off by at most 2⁻⁴ of its size, so that a product of many terms is off by some 4 % of
its norm: other pictures than in bf16 (`marble bench options` tells how far). Training, evaluation
and export stay as they are.

Layers of the blocks that see tokens are meant: what modulates them has one row per picture and
decides on all of them, and stays bf16, as do layers whose sizes are not multiples of 16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marble.errors import MarbleError

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""Of e4m3."""
UNIT = 16
"""Sizes of a layer must be multiples of this."""
NEEDED = (8, 9)
"""Compute capability of the first GPUs that multiply fp8."""
_MODULATION = re.compile(r"norm|ada|mod(ulation)?\.", re.IGNORECASE)


def check(device: torch.device) -> None:
    """Raises where the device does not multiply fp8."""
    problem = None
    if device.type != "cuda":
        problem = f"this is a {device.type.upper()}"
    else:
        has = torch.cuda.get_device_capability(device)
        if has < NEEDED:
            name = torch.cuda.get_device_name(device)
            problem = f"{name} has compute capability {has[0]}.{has[1]}"
    if problem:
        raise refusal(problem)


def refusal(problem: str) -> MarbleError:
    """What is said where fp8 is not to be had."""
    return MarbleError(
        f"rollout.fp8: needs a GPU of compute capability {NEEDED[0]}.{NEEDED[1]} or more (Ada, "
        f"Hopper, Blackwell), and {problem}; set rollout.fp8=false"
    )


def quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3, fp32 scale [..., 1]) with values ≈ e4m3 · scale; the largest of each row is 448."""
    wide = values.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / LARGEST
    return (wide / scale).clamp(-LARGEST, LARGEST).to(E4M3), scale


def product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x [n, in] times the quantised weight [out, in] with its scale [out, 1], in x's format."""
    low, rows = quantised(x)
    found = torch._scaled_mm(
        low,
        weight.t(),
        scale_a=rows,
        scale_b=scale.t(),
        out_dtype=torch.bfloat16,  # scales by row have no other
        use_fast_accum=x.device.type == "cuda",
    ).to(x.dtype)
    return found if bias is None else found + bias.to(found.dtype)


class Fp8Linear(nn.Linear):
    """A linear layer that holds its weight in e4m3 as well, and multiplies with that."""

    low: Tensor
    scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 3:  # one row per picture, not per token
            return F.linear(x, self.weight, self.bias)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        flat = product(x.reshape(-1, x.shape[-1]), self.low, self.scale, self.bias)
        return flat.view(*x.shape[:-1], -1)


def fitting(blocks: list[nn.Module]) -> list[nn.Linear]:
    """The layers of a model's blocks that are taken to fp8."""
    found: list[nn.Linear] = []
    for block in blocks:
        for name, layer in block.named_modules():
            plain = type(layer) is nn.Linear and type(layer.weight) is nn.Parameter
            if plain and not _MODULATION.search(name) and not _is_factor(name):
                assert isinstance(layer, nn.Linear)
                if layer.in_features % UNIT == 0 and layer.out_features % UNIT == 0:
                    found.append(layer)
    return found


def _is_factor(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


@contextmanager
def drawing(blocks: list[nn.Module]) -> Iterator[int]:
    """Runs its body with the blocks' products in fp8; how many layers that are. Weights must not
    change inside: enter it when a LoRA is merged, not before."""
    layers = fitting(blocks)
    try:
        with torch.no_grad():
            for layer in layers:
                held: Any = vars(layer)
                held["low"], held["scale"] = quantised(layer.weight)
                layer.__class__ = Fp8Linear
        yield len(layers)
    finally:
        for layer in layers:
            layer.__class__ = nn.Linear
            for name in ("low", "scale"):
                vars(layer).pop(name, None)
