"""Tiny random checkpoints and pictures for the reward tests."""

from pathlib import Path

import pytest
import torch
from _tiny_clip import new_tiny_clip


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_tiny_clip(tmp_path_factory.mktemp("clip"))


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
