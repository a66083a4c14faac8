"""SD3.5 Medium's transformer with random weights, its LoRA as trained, and one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from diffusers import SD3Transformer2DModel
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from torch import Tensor

SD35M: dict[str, Any] = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 24,
    "attention_head_dim": 64,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)),
    "qk_norm": "rms_norm",
}
TINY: dict[str, Any] = SD35M | {
    "sample_size": 16,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 4,
    "joint_attention_dim": 32,
    "caption_projection_dim": 64,
    "pooled_projection_dim": 32,
    "pos_embed_max_size": 24,
    "dual_attention_layers": (0,),
}
LORA_TARGETS = [
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
    *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
]


def build(
    device: torch.device, *, tiny: bool = False, rank: int = 32, input_casts: bool = True
) -> SD3Transformer2DModel:
    """bf16 base, fp32 LoRA factors in two adapters: `default`, trained, and `old`, frozen."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = SD3Transformer2DModel(**(TINY if tiny else SD35M))
    model.to(torch.bfloat16).to_empty(device=device)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dim() >= 2:
                tensor.normal_(std=0.02)
            else:
                tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    model.requires_grad_(False)
    for adapter in ("default", "old"):
        config = LoraConfig(
            r=rank, lora_alpha=2 * rank, init_lora_weights="gaussian", target_modules=LORA_TARGETS
        )
        model.add_adapter(config, adapter_name=adapter)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.to(device, torch.float32)
            if "lora_B" in name:
                # Away from the start of training, where the gradients of lora_A are all zero.
                parameter.normal_(std=0.01)
    for layer in _lora_layers(model):
        layer.cast_input_dtype_enabled = input_casts
    use(model, "default")
    return model


def use(model: SD3Transformer2DModel, adapter: str) -> None:
    """``default``, ``old`` or ``base``; only `default` is ever trained.

    Goes straight to the LoRA layers: the library's own switch walks all modules of the model,
    which costs the host about as much as a forward.
    """
    for layer in _lora_layers(model):
        layer.enable_adapters(adapter != "base")
        if adapter != "base":
            layer.set_adapter(adapter)
        for factor in (layer.lora_A, layer.lora_B):
            factor["default"].weight.requires_grad_(True)
            factor["old"].weight.requires_grad_(False)


@cache
def _lora_layers(model: SD3Transformer2DModel) -> list[LoraLayer]:
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


@dataclass(frozen=True)
class MicroBatch:
    x_0: Tensor
    x_t: Tensor
    t: Tensor
    text: Tensor
    pooled: Tensor

    def inputs(self) -> dict[str, Any]:
        return {
            "hidden_states": self.x_t,
            "encoder_hidden_states": self.text,
            "pooled_projections": self.pooled,
            "timestep": self.t * 1000,
            "return_dict": False,
        }


def micro_batch(
    model: SD3Transformer2DModel, batch: int, latent: int, text_tokens: int
) -> MicroBatch:
    config, device = model.config, model.device
    g = torch.Generator(device).manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, device=device)

    shape = (batch, config.in_channels, latent, latent)
    x_0, noise = normal(*shape), normal(*shape)
    t = torch.rand(batch, generator=g, device=device) * 0.9 + 0.05
    column = t[:, None, None, None]
    return MicroBatch(
        x_0,
        ((1 - column) * x_0 + column * noise).to(torch.bfloat16),
        t,
        normal(batch, text_tokens, config.joint_attention_dim).to(torch.bfloat16),
        normal(batch, config.pooled_projection_dim).to(torch.bfloat16),
    )
