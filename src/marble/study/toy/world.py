"""Prompts, targets and rewards of the toy world.

A prompt asks for a target τ ∈ R¹², a linear function of its embedding, so that what is learned on
some prompts serves others. A sample is x ∈ R¹²: content x[0:6], text x[6:8], style x[8:12]. It is
carried as a 2×2 picture, 12 bytes for numbers from −4 to 4, so that rewards are ordinary ones.

The rewards repeat in small what makes real ones awkward together: two that agree (`similarity`,
`preference`), two that apply to one source each and are hard (`counting` in steps, `reading` with a
narrow peak), and one that is easy and has no end (`vivid`), whose gain costs the others.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from marble.data import Prompt

SOURCES = ("general", "text", "count")
WIDTH, EMBEDDING, REACH = 12, 6, 4.0
NEAR = 0.4
"""How near to its target a number counts as right."""
_MAP = np.random.default_rng(12).standard_normal((EMBEDDING, WIDTH)) / np.sqrt(EMBEDDING)


def prompts(split: str, per_source: int) -> dict[str, list[Prompt]]:
    """Prompts by source; those of different splits share nothing."""
    return {
        source: [Prompt(f"{split} {source} {i}", source, {}) for i in range(per_source)]
        for source in SOURCES
    }


def embedding(prompt: str) -> np.ndarray:
    """A standard normal vector that belongs to the prompt."""
    seed = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).standard_normal(EMBEDDING)


def target(prompt: str) -> np.ndarray:
    return np.asarray(embedding(prompt) @ _MAP)


def to_pictures(x: torch.Tensor) -> torch.Tensor:
    """[n, 12] → uint8 [n, 3, 2, 2]."""
    scaled = (x.clamp(-REACH, REACH) + REACH) * (255 / (2 * REACH))
    return scaled.round().to(torch.uint8).view(-1, 3, 2, 2)


def numbers(images: torch.Tensor) -> np.ndarray:
    """uint8 [n, 3, 2, 2] → [n, 12]."""
    return images.flatten(1).double().cpu().numpy() * (2 * REACH / 255) - REACH


def _error(images: torch.Tensor, texts: list[str], part: slice) -> np.ndarray:
    return np.asarray(numbers(images)[:, part] - np.array([target(t) for t in texts])[:, part])


def similarity(images: torch.Tensor, texts: list[str], metadata: list[Any]) -> np.ndarray:
    """1 − mean squared error of the content."""
    return np.asarray(1 - (_error(images, texts, slice(0, 6)) ** 2).mean(1))


def preference(images: torch.Tensor, texts: list[str], metadata: list[Any]) -> np.ndarray:
    """Mostly `similarity`, and a calm style."""
    style = numbers(images)[:, 8:12]
    return np.asarray(0.7 * similarity(images, texts, metadata) + 0.3 * (1 - (style**2).mean(1)))


def counting(images: torch.Tensor, texts: list[str], metadata: list[Any]) -> np.ndarray:
    """Share of four numbers that are right: no slope to follow."""
    return np.asarray((np.abs(_error(images, texts, slice(0, 4))) < NEAR).mean(1))


def strict(images: torch.Tensor, texts: list[str], metadata: list[Any]) -> np.ndarray:
    """1 if all four are right; for evaluation."""
    return np.asarray((np.abs(_error(images, texts, slice(0, 4))) < NEAR).all(1).astype(float))


def reading(images: torch.Tensor, texts: list[str], metadata: list[Any]) -> np.ndarray:
    """A narrow peak where the text is right."""
    return np.asarray(np.exp(-2 * (_error(images, texts, slice(6, 8)) ** 2).sum(1)))


def vivid(images: torch.Tensor, texts: list[str], metadata: list[Any]) -> np.ndarray:
    """Easy to game: more style is always better, and content is pulled along."""
    x = numbers(images)
    return np.asarray(x[:, 8:12].mean(1) + 0.25 * x[:, 0:6].mean(1))


def tame(images: torch.Tensor, texts: list[str], metadata: list[Any]) -> np.ndarray:
    """How little a sample exceeds what the base draws; for evaluation."""
    return np.asarray(-(np.maximum(np.abs(numbers(images)) - 2.0, 0) ** 2).mean(1))
