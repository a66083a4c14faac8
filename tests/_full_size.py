"""Stable Diffusion 3.5 Medium and the reward models at full size, on the meta device."""

import sys
from pathlib import Path

import torch
from diffusers import SD3Transformer2DModel
from transformers import (
    BlipTextConfig,
    BlipVisionConfig,
    BlipVisionModel,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    SwinConfig,
)
from transformers.models.blip.modeling_blip_text import BlipTextModel

from marble.rewards.aesthetic import AestheticHead

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import sd35m_folders as sizes
from sd35m import SD35M

TOWER = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def text_encoder(tower):
    config = CLIPTextConfig(**dict(zip(TOWER, tower)), vocab_size=49408, projection_dim=tower[0])
    return CLIPTextModelWithProjection(config)


def clip(text, vision, width):
    vision = {**dict(zip(TOWER, vision)), "image_size": 224, "patch_size": 14}
    return CLIPModel(
        CLIPConfig(text_config=dict(zip(TOWER, text)), vision_config=vision, projection_dim=width)
    )


def detector():
    swin = SwinConfig(
        embed_dim=96,
        depths=[2, 2, 18, 2],
        num_heads=[3, 6, 12, 24],
        window_size=7,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    return Mask2FormerForUniversalSegmentation(
        Mask2FormerConfig(backbone_config=swin, num_labels=80)
    )


def image_reward():
    large = dict(zip(TOWER, (1024, 24, 16, 4096)))
    vision = BlipVisionModel(BlipVisionConfig(**large, image_size=224, patch_size=16))
    base = dict(zip(TOWER, (768, 12, 12, 3072)))
    text = BlipTextConfig(**base, vocab_size=30524, encoder_hidden_size=1024, is_decoder=True)
    head = AestheticHead([768, 1024, 128, 64, 16, 1])
    return torch.nn.ModuleList([vision, BlipTextModel(text, add_pooling_layer=False), head])


def full_size_parts():
    """Name, as `marble.memory` has it → module."""
    with torch.device("meta"):
        return {
            "transformer": SD3Transformer2DModel(**SD35M),
            "vae": sizes._vae(tiny=False),
            "text_encoder": text_encoder(sizes.CLIP_L_TEXT),
            "text_encoder_2": text_encoder(sizes.CLIP_G_TEXT),
            "text_encoder_3": sizes._t5(4096, tiny=False, full=True),
            "clip-l": clip(sizes.CLIP_L_TEXT, sizes.CLIP_L_VISION, 768),
            "clip-h": clip(sizes.CLIP_H_TEXT, sizes.CLIP_H_VISION, 1024),
            "hps": clip(sizes.CLIP_H_TEXT, sizes.CLIP_H_VISION, 1024),
            "mask2former": detector(),
            "imagereward": image_reward(),
            "aesthetic-head": AestheticHead([768, 1024, 128, 64, 16, 1]),
        }
