"""The layer with a LoRA: y = Wx + B(A(x)·s), without casts that a forward pass pays for.

peft's own layer brings the input to the factors' format, fp32, which autocast takes back again:
six passes over the activations at every group of q, k and v. Here the input goes straight to the
format of the computation, and the factors are kept in that format too (`keep_low`): the fp32
weights remain what the optimiser changes, and are copied once per forward pass of the model, all
by one call. Gradients reach the fp32 weights with the error of one product of 16-bit factors; on a
GPU without the rounding of its result, which autocast has. The modules, their names and states are
peft's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft.tuners.lora import Linear, LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

from marble.jacobian.wide import weight_gradient

WIDE = ("cuda",)
"""Kinds of device whose 16-bit products may have an fp32 result. A CPU would have to multiply in
fp32, which takes four times as long."""


class LeanLinear(Linear):
    """peft's LoRA on a linear layer, without its options: one adapter, no dropout, no variants."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters:
            return self.base_layer(x)
        name, *others = self.active_adapters
        if others or self.merged_adapters:
            return super().forward(x, *args, **kwargs)
        down, up = self.lora_A[name], self.lora_B[name]
        # Each product casts x itself. Where x is fp32, as norms leave it, their gradients are then
        # added in fp32, as with peft's layer; of one cast for both, the sum is rounded again.
        y = self.base_layer(x)
        if getattr(down, "low", None) is None and not torch.is_autocast_enabled(x.device.type):
            x = x.to(dtype=down.weight.dtype)  # type: ignore[arg-type]
        # The scale goes to the narrow side: r numbers a token instead of the layer's width.
        return (y + up(down(x) * self.scaling[name])).to(y.dtype)


class Factor(nn.Linear):
    """A factor of a LoRA; `low`, if kept, is its weight in the format of the computation."""

    low: Tensor | None
    plain_linear = True
    """What `marble.jacobian` asks: y = xWᵀ, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        if self.low is None:
            return F.linear(x, self.weight)
        return LowLinear.apply(x, self.weight, self.low)


class LowLinear(torch.autograd.Function):
    """y = x·lowᵀ, whose gradient goes to ``weight``, of which ``low`` is a rounded copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, low: Tensor) -> Tensor:
        inner = x.to(low.dtype)
        ctx.save_for_backward(inner, low)
        ctx.x_dtype, ctx.weight_dtype = x.dtype, weight.dtype
        return F.linear(inner, low)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (delta,) = grads
        x, low = ctx.saved_tensors
        grad_x = delta.matmul(low).to(ctx.x_dtype) if ctx.needs_input_grad[0] else None
        grad_weight = _product(delta, x, ctx.weight_dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None


class LowLinears(torch.autograd.Function):
    """y = x·lowᵀ, where ``low`` is the rounded copies of several weights, one below the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, *weights: Tensor) -> Tensor:
        inner = x.to(low.dtype)
        ctx.save_for_backward(inner, low)
        ctx.x_dtype, ctx.weight_dtype = x.dtype, weights[0].dtype
        ctx.sizes = [len(weight) for weight in weights]
        return F.linear(inner, low)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (delta,) = grads
        x, low = ctx.saved_tensors
        grad_x = delta.matmul(low).to(ctx.x_dtype) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[2:]):
            return grad_x, None, *(None for _ in ctx.sizes)
        return grad_x, None, *_product(delta, x, ctx.weight_dtype).split(ctx.sizes)


def _product(delta: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float32 != delta.dtype and delta.device.type in WIDE:
        return weight_gradient(delta, x)
    return delta.reshape(-1, delta.shape[-1]).t().mm(x.reshape(-1, x.shape[-1])).to(dtype)


def side_by_side(layers: Sequence[Any], x: Tensor) -> list[Tensor]:
    """What each of the layers gives for x. Their narrow products, which read all of x for a few
    numbers per token, are one product where nothing looks at them one by one."""
    if not all(_joins(layer) for layer in layers):
        return [layer(x) for layer in layers]
    names = [layer.active_adapters[0] for layer in layers]
    downs = [layer.lora_A[name] for layer, name in zip(layers, names)]
    low = torch.cat([down.low for down in downs])
    narrow = LowLinears.apply(x, low, *(down.weight for down in downs))
    found = []
    for layer, name, part in zip(layers, names, narrow.split([len(d.low) for d in downs], dim=-1)):
        y = layer.base_layer(x)
        found.append((y + layer.lora_B[name](part * layer.scaling[name])).to(y.dtype))
    return found


def _joins(layer: nn.Module) -> bool:
    """Whether the layer's narrow product may be taken with others: not while it is recorded
    (`marble.jacobian`) or gated (`sliders`), both of which look at its own factor."""
    if not isinstance(layer, LeanLinear) or layer.disable_adapters or layer.merged_adapters:
        return False
    if len(layer.active_adapters) != 1 or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    down = layer.lora_A[layer.active_adapters[0]]
    return type(down) is Factor and down.low is not None and not down._forward_hooks


def make_lean(layers: Iterable[LoraLayer]) -> None:
    """Gives peft's plain LoRA layers the forward pass above; others stay as they are."""
    for layer in layers:
        if not _plain(layer):
            continue
        layer.__class__ = LeanLinear
        for factors in (layer.lora_A, layer.lora_B):
            for factor in factors.values():
                factor.__class__ = Factor
                factor.register_buffer("low", None, persistent=False)


def _plain(layer: LoraLayer) -> bool:
    factors = [f for part in (layer.lora_A, layer.lora_B) for f in part.values()]
    return (
        type(layer) is Linear
        and not layer.lora_variant
        and all(type(drop) is nn.Identity for drop in layer.lora_dropout.values())
        and all(type(f) is nn.Linear and f.bias is None for f in factors)
    )


def keep_low(model: nn.Module, layers: Iterable[LoraLayer], dtype: torch.dtype) -> None:
    """Keeps the factors in ``dtype`` as well, up to date whenever ``model`` is called."""
    pairs: list[tuple[LoraLayer, str, Factor]] = []
    for layer in layers:
        if isinstance(layer, LeanLinear):
            for factors in (layer.lora_A, layer.lora_B):
                for name, factor in factors.items():
                    assert isinstance(factor, Factor)
                    factor.low = factor.weight.detach().to(dtype)
                    pairs.append((layer, name, factor))

    def copy(*_: Any) -> None:
        used = [f for layer, name, f in pairs if _in_use(layer, name)]
        if used:
            # `.data`: a pass that waits for its backward holds these copies. Their values are the
            # same until the optimiser's step, after which no such pass may be left anyway.
            torch._foreach_copy_([f.low.data for f in used], [f.weight.data for f in used])  # type: ignore[union-attr]

    model.register_forward_pre_hook(copy)


def _in_use(layer: LoraLayer, name: str) -> bool:
    held = getattr(layer, "inside", ())
    return not layer.disable_adapters and layer.active_adapters[0] == name and name not in held
