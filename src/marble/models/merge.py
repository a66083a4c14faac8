"""Drawing with a LoRA inside the weights: W + s·BA, formed once, instead of two products per call.

Eight projections of every block have a LoRA. While pictures are drawn the factors do not change,
so the merged weight is formed once, in fp32, and rounded once to the format of W. That is exact but
for this rounding: with bf16 weights each one is off by at most 2⁻⁸ of its size (half a unit in the
last place), as the frozen weights themselves already are. The frozen weights wait in main memory
and are copied back, not subtracted from: they return bit for bit, to the same addresses. The device
holds no second copy (SD3.5 Medium in bf16: 0.9 GB), which a recipe for a small GPU has no room for.
In training v_old keeps its factors: rounding them into the weights moves the gradient as far as
another batch split does (0.3 %); it would spare 4 % of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear, LoraLayer
from torch import Tensor, nn

from marble.models import lora
from marble.replay import is_small


def mergeable(model: nn.Module) -> bool:
    """Whether every adapted layer is a plain matrix: neither sharded nor quantised."""
    layers = lora.lora_layers(model)
    return bool(layers) and all(_plain(layer) for _, layer in layers)


def _plain(layer: LoraLayer) -> bool:
    base = layer.get_base_layer()
    weight = base.weight
    return (
        isinstance(layer, Linear)
        and type(base) is nn.Linear
        and type(weight) is nn.Parameter  # FSDP and quantisers have types of their own
        and weight.is_floating_point()
        and weight.element_size() >= 2
        and not layer.fan_in_fan_out
        and not layer.lora_variant
    )


@contextmanager
def merged(model: nn.Module, adapter: str) -> Iterator[None]:
    """Runs its body with the adapter's LoRA inside the weights, then puts the frozen ones back.

    Inside, the model takes the path of `base`. Adapters cannot be switched there, and nothing may
    be differentiated: a LoRA inside the weights has no factors to train.
    """
    before = lora.active(model)
    lora.activate(model, lora.BASE)
    aside: list[tuple[Tensor, Tensor]] = []
    stays = is_small(model)  # a large model's frozen weights wait in main memory
    try:
        for _, layer in lora.lora_layers(model):
            weight: Any = layer.get_base_layer().weight
            inside = _sum(layer, adapter, weight.data)
            kept = weight.data if stays else weight.data.cpu()
            aside.append((weight.data, kept.clone()))
            weight.data.copy_(inside)
        with lora.fixed(model):
            yield
    finally:
        for data, frozen in aside:
            data.copy_(frozen)
        lora.activate(model, before)


@torch.no_grad()
def _sum(layer: Any, adapter: str, frozen: Tensor) -> Tensor:
    down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    # In fp32 whatever surrounds this: autocast would round the product before it is added.
    with torch.autocast(frozen.device.type, enabled=False):
        wide = torch.addmm(frozen.to(down.dtype), up, down, alpha=float(layer.scaling[adapter]))
    return wide.to(frozen.dtype)
