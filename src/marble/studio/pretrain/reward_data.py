"""The world's pictures as tensors on the training device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..world import generate
from .common import autocast


class Objects(NamedTuple):
    """What is in n pictures, at most M objects each."""

    boxes: Tensor  # [n, M, 4], corners in pixels
    labels: Tensor  # [n, M]; −1 pads
    colors: Tensor  # [n, M]; −1 where the colour has no name


@dataclass
class Pictures:
    """n captioned pictures, their objects, and a copy of each with one deliberate error.

    ``soft`` are the pictures as the autoencoder gives them back: what a generator can at best
    produce. Half of what training sees comes from there.
    """

    images: Tensor  # uint8 [n, 3, s, s]
    broken: Tensor  # uint8 [n, 3, s, s]
    prompts: list[str]
    metadata: list[dict[str, Any]]
    ids: Tensor  # [n, tokens]
    same: Tensor  # [n]; equal where the prompts are equal
    objects: Objects
    broken_objects: Objects
    soft: Tensor | None = None
    broken_soft: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def side(self) -> int:
        return self.images.shape[-1]

    def clean(self, index: Tensor) -> Tensor:
        """Pictures in [0, 1], half of them (at random) softened by the autoencoder."""
        return self._mixed(self.images, self.soft, index)

    def wrong(self, index: Tensor) -> Tensor:
        """Their copies with one error, likewise."""
        return self._mixed(self.broken, self.broken_soft, index)

    def _mixed(self, sharp: Tensor, soft: Tensor | None, index: Tensor) -> Tensor:
        x = sharp[index]
        if soft is not None:
            take = torch.rand(len(index), 1, 1, 1, device=index.device) < 0.5
            x = torch.where(take, soft[index], x)
        return x.float() / 255

    def with_objects(self, index: Tensor) -> tuple[Tensor, Objects]:
        """Pictures in [0, 1], every second one a copy with an error, and what is in them."""
        right, wrong = index[::2], index[1::2]
        x = torch.cat([self.clean(right), self.wrong(wrong)])
        pairs = zip(self.objects, self.broken_objects)
        return x, Objects(*(torch.cat([a[right], b[wrong]]) for a, b in pairs))

    @torch.no_grad()
    def soften(self, vae: Any, batch: int = 1024) -> None:
        """Fill ``soft`` and ``broken_soft`` through the autoencoder."""
        self.soft, self.broken_soft = (
            torch.cat(
                [
                    to_bytes(reconstruct(vae, part.float() / 255, 0.0))
                    for part in images.split(batch)
                ]
            )
            for images in (self.images, self.broken)
        )


def to_bytes(x: Tensor) -> Tensor:
    """[0, 1] → uint8."""
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def reconstruct(vae: Any, x: Tensor, strength: Tensor | float) -> Tensor:
    """Pictures in [0, 1] through the autoencoder, with noise of ``strength`` on unit latents."""
    with torch.no_grad(), autocast(x.device):
        z = vae.encode(x * 2 - 1).latent_dist.mean.float()
        z = z + torch.randn_like(z) * strength / vae.config.scaling_factor
        return (vae.decode(z).sample.float() + 1) / 2


def with_errors(
    n: int, seed: int, workers: int, split: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same n prompts drawn rightly and with one deliberate error each."""
    right, wrong = (generate(n, seed, workers, sloppy=s, split=split) for s in (0.0, 1.0))
    if right["prompts"] != wrong["prompts"]:
        raise AssertionError("the world gave other prompts for the same seed")
    return right, wrong


def from_world(
    right: Mapping[str, Any],
    wrong: Mapping[str, Any],
    tokenizer: Any,
    device: torch.device,
    tokens: int = 16,
) -> Pictures:
    """Tensors of :func:`with_errors` on the device."""
    prompts = list(right["prompts"])
    ids = tokenizer(
        prompts, padding="max_length", truncation=True, max_length=tokens, return_tensors="pt"
    )["input_ids"]
    number: dict[str, int] = {}
    same = torch.tensor([number.setdefault(p, len(number)) for p in prompts])
    return Pictures(
        images=_channels_first(right["images"], device),
        broken=_channels_first(wrong["images"], device),
        prompts=prompts,
        metadata=[dict(m) for m in right["metadata"]],
        ids=ids.to(device),
        same=same.to(device),
        objects=_objects(right, device),
        broken_objects=_objects(wrong, device),
    )


def _objects(data: Mapping[str, Any], device: torch.device) -> Objects:
    return Objects(
        torch.from_numpy(data["boxes"]).to(device),
        torch.from_numpy(data["labels"]).long().to(device),
        torch.from_numpy(data["colors"]).long().to(device),
    )


def _channels_first(images: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous()
