"""SD3's attention over a picture's tokens and its prompt's, with fewer copies of them.

diffusers moves the heads before the tokens first, then normalises and concatenates. Its compiled
backward pass writes every gradient of q, k and v twice: in that order, and in the order of the
projections. Here tokens stay before heads until attention itself, which takes either order. Every
number is computed as there. The LoRAs of q, k and v read their common input once.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from marble.models.lora_layer import side_by_side


class JointAttention:
    """In place of diffusers' `JointAttnProcessor2_0`."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        layers, norms = (attn.to_q, attn.to_k, attn.to_v), (attn.norm_q, attn.norm_k, None)
        qkv = _projected(layers, norms, hidden_states, attn.heads)
        if encoder_hidden_states is not None:
            layers = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            norms = (attn.norm_added_q, attn.norm_added_k, None)
            text = _projected(layers, norms, encoder_hidden_states, attn.heads)
            qkv = [torch.cat(pair, dim=1) for pair in zip(qkv, text)]
        q, k, v = (part.transpose(1, 2) for part in qkv)
        found = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).to(q.dtype)
        count = hidden_states.shape[1]
        picture, words = found[:, :count], found[:, count:]
        picture = attn.to_out[1](attn.to_out[0](picture))
        if encoder_hidden_states is None:
            return picture
        return picture, words if attn.context_pre_only else attn.to_add_out(words)


def _projected(layers: Any, norms: Any, x: Tensor, heads: int) -> list[Tensor]:
    """[B, T, heads, D] each."""
    found = [part.unflatten(-1, (heads, -1)) for part in side_by_side(layers, x)]
    return [part if norm is None else norm(part) for part, norm in zip(found, norms)]


def use_joint_attention(model: nn.Module) -> None:
    """Replaces diffusers' processors, and no others."""
    for module in model.modules():
        if isinstance(module, Attention) and type(module.processor) is JointAttnProcessor2_0:
            module.set_processor(JointAttention())
