"""BLIP in its authors' layout as transformers' modules: a ViT and a BERT that looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_VISION = (  # there → here, applied in this order
    ("patch_embed.proj", "embeddings.patch_embedding"),
    ("pos_embed", "embeddings.position_embedding"),
    ("cls_token", "embeddings.class_embedding"),
    ("blocks.", "encoder.layers."),
    (".attn.qkv", ".self_attn.qkv"),
    (".attn.proj", ".self_attn.projection"),
    (".norm1", ".layer_norm1"),
    (".norm2", ".layer_norm2"),
)
_HEAD_WIDTH = 64  # of BLIP's vision and text towers alike


def part(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The entries below a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def vision_model(state: Mapping[str, torch.Tensor]) -> Any:
    """A ``BlipVisionModel`` with the weights of BLIP's ``visual_encoder``."""
    from transformers import BlipVisionConfig, BlipVisionModel

    renamed = {}
    for key, value in state.items():
        for there, here in _VISION:
            key = key.replace(there, here)
        key = key.replace("norm.", "post_layernorm.") if key.startswith("norm.") else key
        renamed[key] = value
    width, _, patch, _ = renamed["embeddings.patch_embedding.weight"].shape
    cells = renamed["embeddings.position_embedding"].shape[1] - 1
    config = BlipVisionConfig(
        hidden_size=width,
        intermediate_size=renamed["encoder.layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=_layers(renamed, "encoder.layers."),
        num_attention_heads=width // _HEAD_WIDTH,
        image_size=patch * round(cells**0.5),
        patch_size=patch,
        layer_norm_eps=1e-6,
    )
    model: Any = BlipVisionModel(config)
    model.load_state_dict(renamed)
    return model


def text_model(state: Mapping[str, torch.Tensor]) -> Any:
    """A ``BlipTextModel`` with cross-attention and the weights of BLIP's ``text_encoder``."""
    from transformers import BlipTextConfig
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    state = {k: v for k, v in state.items() if not k.endswith("position_ids")}
    vocabulary, width = state["embeddings.word_embeddings.weight"].shape
    cross = state["encoder.layer.0.crossattention.self.key.weight"].shape[1]
    config = BlipTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        encoder_hidden_size=cross,
        intermediate_size=state["encoder.layer.0.intermediate.dense.weight"].shape[0],
        num_hidden_layers=_layers(state, "encoder.layer."),
        num_attention_heads=width // _HEAD_WIDTH,
        max_position_embeddings=state["embeddings.position_embeddings.weight"].shape[0],
        layer_norm_eps=1e-12,
        is_decoder=True,  # that is how transformers spells "has cross-attention"
        bos_token_id=0,  # unused here; the defaults lie outside a small vocabulary
        eos_token_id=0,
        pad_token_id=0,
        sep_token_id=0,
    )
    model: Any = BlipTextModel(config, add_pooling_layer=False)
    model.load_state_dict(state)
    return model


def _layers(state: Mapping[str, torch.Tensor], prefix: str) -> int:
    numbers = [int(k.removeprefix(prefix).split(".")[0]) for k in state if k.startswith(prefix)]
    return max(numbers) + 1
