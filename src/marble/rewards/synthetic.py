"""Rewards made to be difficult: for studies of what balances survive, not for training a model.

All are ordinary rewards, named in a recipe as `marble.rewards.synthetic:NAME` with their options:

    - {name: clip-noisy, reward: "marble.rewards.synthetic:Altered",
       options: {reward: studio-clip, noise: 0.1}}
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from marble.rewards.base import Metadata, Reward, RewardLike
from marble.rewards.registry import check, load


class Altered(Reward):
    """scale · (R + noise · z) + offset of another reward R; z is standard normal.

    A near-duplicate (`noise` small against R's spread), the adversary of another (`scale: -1`),
    the same reward in other units (`scale: 1000`). The noise is a function of the picture's pixels
    and `seed`: a picture scored twice gets the same score, and a resumed run the same ones.
    """

    def __init__(
        self,
        reward: str,
        *,
        scale: float = 1.0,
        offset: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.inner: RewardLike = load(reward, **(options or {}))
        self.scale, self.offset, self.noise, self.seed = scale, offset, noise, seed
        self.may_abstain = bool(getattr(self.inner, "may_abstain", False))
        if noise == 0.0:
            ends = [scale * end + offset for end in self.inner.range]
            self.range = (min(ends), max(ends))

    @classmethod
    def check(cls, reward: str = "", options: dict[str, Any] | None = None, **_: Any) -> str:
        return check(reward, **(options or {}))

    def applies(self, metadata: Metadata) -> bool:
        return self.inner.applies(metadata)

    def to(self, device: str | torch.device) -> Altered:
        self.inner = self.inner.to(device)
        return self

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        raw = self.inner.score(images, prompts, metadata)
        if isinstance(raw, torch.Tensor):
            raw = raw.detach().double().cpu().numpy()
        scores = np.array([np.nan if value is None else value for value in raw], dtype=np.float64)
        if self.noise:
            scores += self.noise * pixel_noise(images, self.seed)
        return self.scale * scores + self.offset


class Noise(Reward):
    """Standard normal noise, a function of the picture: a reward that nothing can be learned from.

    Independent for every `seed`.
    """

    def __init__(self, *, seed: int = 0, scale: float = 1.0) -> None:
        self.seed, self.scale = seed, scale

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        return self.scale * pixel_noise(images, self.seed)


class Constant(Reward):
    """The same value for every picture: a silent reward."""

    def __init__(self, *, value: float = 0.5) -> None:
        self.value = value
        self.range = (value, value)

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        return np.full(len(prompts), self.value)


class Saturation(Reward):
    """Mean (max − min)/max over the colour channels: easy to game by painting everything gaudy."""

    range = (0.0, 1.0)

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        pixels = images.double()
        high, low = pixels.amax(1), pixels.amin(1)
        return np.asarray(((high - low) / high.clamp_min(1)).mean((1, 2)).cpu().numpy())


def pixel_noise(images: torch.Tensor, seed: int) -> np.ndarray:
    """A standard normal number for each picture, from a hash of its pixels and `seed`."""
    pixels = images.contiguous().cpu().numpy()
    values = np.empty(len(pixels))
    for i, picture in enumerate(pixels):
        digest = hashlib.blake2b(picture.tobytes(), digest_size=8, salt=seed.to_bytes(8, "little"))
        state = int.from_bytes(digest.digest(), "little")
        values[i] = np.random.default_rng(state).standard_normal()
    return values
