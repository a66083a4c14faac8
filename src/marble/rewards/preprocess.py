"""Pictures as CLIP's authors prepare them: bicubic resize, centre crop, their mean and std."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from marble.errors import MarbleError

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Preprocess:
    """The settings of a ``preprocessor_config.json``, applied to uint8 tensors.

    PIL does the resizing, picture by picture: torch's antialiased bicubic filter differs from
    PIL's by up to two grey levels, which moves a score in the third decimal.
    """

    short_side: int | None = 224
    crop: int | None = 224
    mean: tuple[float, ...] = OPENAI_MEAN
    std: tuple[float, ...] = OPENAI_STD
    pad: bool = False
    """Fit the whole picture in and fill up with black, instead of cropping (HPSv2's authors)."""

    @classmethod
    def from_folder(cls, folder: Path) -> Preprocess:
        """Read ``preprocessor_config.json`` as transformers writes it."""
        file = folder / "preprocessor_config.json"
        try:
            raw = json.loads(file.read_text())
        except FileNotFoundError:
            raise MarbleError(
                f"{folder} has no preprocessor_config.json; copy the one of the CLIP model "
                "this checkpoint was trained from into it, or give `processor:`"
            ) from None
        raw = raw.get("image_processor", raw)
        size, crop = raw.get("size", 224), raw.get("crop_size", 224)
        if isinstance(size, dict):
            size = size.get("shortest_edge") or size.get("height")
        if isinstance(crop, dict):
            crop = crop.get("height")
        return cls(
            short_side=size if raw.get("do_resize", True) else None,
            crop=crop if raw.get("do_center_crop", True) else None,
            mean=tuple(raw.get("image_mean", OPENAI_MEAN)),
            std=tuple(raw.get("image_std", OPENAI_STD)),
        )

    def to_file(self, folder: Path) -> None:
        """Write a ``preprocessor_config.json`` that transformers reads the same way."""
        raw = {
            "image_processor_type": "CLIPImageProcessor",
            "do_convert_rgb": True,
            "do_resize": self.short_side is not None,
            "size": {"shortest_edge": self.short_side},
            "resample": 3,
            "do_center_crop": self.crop is not None,
            "crop_size": {"height": self.crop, "width": self.crop},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(raw, indent=2) + "\n")

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 ``[n, 3, H, W]`` → normalised float32 ``[n, 3, crop, crop]``, same device."""
        if self.pad and self.crop is not None:
            images = fit_and_pad(images, self.crop)
        else:
            images = centre_crop(resize_short_side(images, self.short_side), self.crop)
        mean = torch.tensor(self.mean, device=images.device).view(1, 3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, 3, 1, 1)
        return (images.float() / 255 - mean) / std


def resize_short_side(images: torch.Tensor, side: int | None) -> torch.Tensor:
    """Scale so that the shorter side is ``side``; bicubic, in PIL, on uint8."""
    height, width = images.shape[-2:]
    if side is None or min(height, width) == side:
        return images
    if height < width:
        target = (int(side * width / height), side)
    else:
        target = (side, int(side * height / width))
    return resize(images, target)


def resize(images: torch.Tensor, target: tuple[int, int]) -> torch.Tensor:
    """To ``target`` (width, height); bicubic, in PIL, on uint8."""
    arrays = images.permute(0, 2, 3, 1).cpu().numpy()
    resized = [
        np.asarray(Image.fromarray(a).resize(target, Image.Resampling.BICUBIC)) for a in arrays
    ]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).to(images.device)


def fit_and_pad(images: torch.Tensor, side: int) -> torch.Tensor:
    """Scale so that the longer side is ``side``, then black around the middle."""
    scale = side / max(images.shape[-2:])
    height, width = (round(n * scale) for n in images.shape[-2:])
    if scale != 1:
        images = resize(images, (width, height))
    left, top = (side - width) // 2, (side - height) // 2
    around = (left, side - width - left, top, side - height - top)
    return torch.nn.functional.pad(images, around)


def centre_crop(images: torch.Tensor, side: int | None) -> torch.Tensor:
    height, width = images.shape[-2:]
    if side is None or (height == side and width == side):
        return images
    top, left = (height - side) // 2, (width - side) // 2
    return images[..., top : top + side, left : left + side]
