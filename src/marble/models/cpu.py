"""Passes in bf16 on a CPU, without what makes them slow there.

Autocast rounds every frozen weight again in each call, and takes attention to bf16, whose backward
pass is four times slower on a CPU than in fp32. Here the weights are rounded once, and attention is
fp32: queries and keys come out of their norms in fp32 anyway. The joint block of SD3 goes over its
tokens less often. torch's GELU costs as much as the product before it; while pictures are drawn it
is part of that product (`drawing`). Velocities and gradients are nearer to those of fp32 than with
autocast alone; passes in fp32 are not touched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.activations import GELU
from diffusers.models.attention import JointTransformerBlock
from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0
from diffusers.models.normalization import RMSNorm
from torch import Tensor, nn
from torch.nn import functional as F


def make_fast(model: nn.Module) -> None:
    """Prepares a frozen model for passes under bf16 autocast on a CPU; before a LoRA is added."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.to(torch.bfloat16)
        elif type(module) is JointTransformerBlock:
            module.__class__ = LeanBlock
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


class LeanBlock(JointTransformerBlock):
    """diffusers' block, each scale-and-shift and each gated sum in one pass over the tokens."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Any, Tensor]:
        more = joint_attention_kwargs or {}
        x, text, known = hidden_states, encoder_hidden_states, F.silu(temb)
        parts = _parts(self.norm1.linear(known), 9 if self.use_dual_attention else 6)
        shift, scale, gate, shift_ff, scale_ff, gate_ff, *second = parts
        plain = self.norm1.norm(x)
        if self.context_pre_only:
            text_scale, text_shift = _parts(self.norm1_context.linear(known), 2)
        else:
            text_parts = _parts(self.norm1_context.linear(known), 6)
            text_shift, text_scale, *text_rest = text_parts
        seen, text_seen = self.attn(
            hidden_states=torch.addcmul(shift, plain, 1 + scale),
            encoder_hidden_states=torch.addcmul(
                text_shift, self.norm1_context.norm(text), 1 + text_scale
            ),
            **more,
        )
        x = torch.addcmul(x, gate, seen)
        if second:
            shift, scale, gate = second
            again = self.attn2(hidden_states=torch.addcmul(shift, plain, 1 + scale), **more)
            x = torch.addcmul(x, gate, again)
        x = _fed(x, self.norm2, self.ff, shift_ff, scale_ff, gate_ff)
        if self.context_pre_only:
            return None, x
        gate, shift_ff, scale_ff, gate_ff = text_rest
        text = torch.addcmul(text, gate, text_seen)
        return _fed(text, self.norm2_context, self.ff_context, shift_ff, scale_ff, gate_ff), x


def _parts(values: Tensor, count: int) -> tuple[Tensor, ...]:
    """[B, count·d] → count times [B, 1, d], for all tokens alike."""
    return values.unsqueeze(1).chunk(count, -1)


def _fed(x: Tensor, norm: Any, layers: Any, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
    return torch.addcmul(x, gate, layers(torch.addcmul(shift, norm(x), 1 + scale)))


class WideRMSNorm(torch.autograd.Function):
    """x·w/√(mean x² + ε) over the last axis, in the format of w, which is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=weight.dtype)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        inner = grads[0] * weight
        along = (inner * x).mean(-1, keepdim=True).mul_(scale.square())
        return inner.sub_(x * along).mul_(scale).to(x.dtype), None, None


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
            if type(norm) is RMSNorm and norm.weight is not None and norm.bias is None:
                normed: Tensor = WideRMSNorm.apply(x, norm.weight.float(), norm.eps)
                return normed
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
