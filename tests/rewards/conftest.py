"""Tiny random checkpoints and pictures for the reward tests."""

from pathlib import Path

import pytest
import torch
from _tiny_clip import new_tiny_clip
from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def tiny_mask2former(tmp_path_factory):
    torch.manual_seed(0)
    backbone = SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        dim_feedforward=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=5,
        num_labels=80,
    )
    folder = tmp_path_factory.mktemp("mask2former")
    Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    return folder


@pytest.fixture
def pictures() -> torch.Tensor:
    """Seven random pictures, neither square nor of the model's size, smooth enough to resize."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(7, 3, 6, 9, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (48, 72), mode="bicubic")
    return (smooth.clamp(0, 1) * 255).to(torch.uint8)


PROMPTS = [
    "a photo of a red dog",
    "a cat",
    "a photo of the green cat and a dog",
    "",
    "a red and a green object of a photo of a dog and a cat and a dog of a photo",
    "a cat",
    "words that nobody taught it",
]


@pytest.fixture
def prompts() -> list[str]:
    return list(PROMPTS)
