"""Passes in bf16 on a CPU, without what makes them slow there.

Autocast rounds every frozen weight again in each call, and takes attention to bf16, whose backward
pass is four times slower on a CPU than in fp32. Here the weights are rounded once, and attention is
fp32: queries and keys come out of their norms in fp32 anyway. torch's GELU costs as much as the
product before it; while pictures are drawn it is part of that product (`drawing`). Numbers differ
from those of autocast by less than its own rounding; passes in fp32 are not touched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.activations import GELU
from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0
from torch import Tensor, nn
from torch.nn import functional as F


def make_fast(model: nn.Module) -> None:
    """Prepares a frozen model for passes under bf16 autocast on a CPU; before a LoRA is added."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.to(torch.bfloat16)
        elif isinstance(module, Attention) and type(module.processor) is JointAttnProcessor2_0:
            module.set_processor(WideJointAttention())


@contextmanager
def drawing(model: nn.Module) -> Iterator[None]:
    """Inside, no pass is differentiated, and GELUs are computed with the product before them.

    Passes of a training step keep the plain form, with and without gradients: v_old and v_θ are
    the same bit for bit where their weights are.
    """
    plain = [m for m in model.modules() if type(m) is GELU and m.approximate == "tanh"]
    if not _has_fused_gelu():
        plain = []
    for module in plain:
        module.__class__ = FusedGELU
    try:
        yield
    finally:
        for module in plain:
            module.__class__ = GELU


class WideJointAttention:
    """Attention over the tokens of picture and text, or of the picture alone, in fp32."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        def heads(x: Tensor, norm: nn.Module | None = None) -> Tensor:
            x = x.unflatten(-1, (attn.heads, -1))
            return (x if norm is None else norm(x)).float()

        x, text = hidden_states, encoder_hidden_states
        q, k = heads(attn.to_q(x), attn.norm_q), heads(attn.to_k(x), attn.norm_k)
        v = heads(attn.to_v(x))
        if text is not None:
            q = torch.cat([q, heads(attn.add_q_proj(text), attn.norm_added_q)], 1)
            k = torch.cat([k, heads(attn.add_k_proj(text), attn.norm_added_k)], 1)
            v = torch.cat([v, heads(attn.add_v_proj(text))], 1)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        with torch.autocast("cpu", enabled=False):
            seen = F.scaled_dot_product_attention(q, k, v)
        out = seen.transpose(1, 2).to(x.dtype).flatten(2)
        if text is None:
            alone: Tensor = attn.to_out[0](out)
            return alone
        # Copies, because a part of the tokens is not a matrix: its product would be made in pieces.
        x, text = (part.contiguous() for part in out.split([x.shape[1], text.shape[1]], 1))
        return attn.to_out[0](x), text if attn.context_pre_only else attn.to_add_out(text)


class FusedGELU(GELU):
    """The tanh form of GELU, inside the linear layer before it. It has no gradient."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        layer, x = self.proj, hidden_states
        if type(layer) is not nn.Linear or x.dtype != layer.weight.dtype:  # a LoRA is on it
            return super().forward(x)
        return _fused_gelu(x, layer.weight, layer.bias)


def _fused_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")
    return found


@functools.cache
def _has_fused_gelu() -> bool:
    """Whether this build of torch has the operation, and it does what it is used for."""
    x = torch.linspace(-4, 4, 64, dtype=torch.bfloat16).reshape(2, 32)
    try:
        found = _fused_gelu(x, torch.eye(32, dtype=torch.bfloat16), None)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, F.gelu(x, approximate="tanh"), atol=0.03)
