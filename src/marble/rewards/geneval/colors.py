"""Names the colour of an object by CLIP, zero-shot, on its crop with the background greyed out."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F

from marble.rewards.clip import load_clip
from marble.rewards.clipscore import CLIPScore
from marble.rewards.geneval.coco import COLORS
from marble.rewards.geneval.detectors import Detections

GREY = 0x99
TEMPLATES = ("a photo of a {color} {label}", "a photo of a {color}-colored {label}")
PLAIN_TEMPLATE = "a photo of a {color} object"


class ClipColors:
    """GenEval's colour classifier: ten colours, three templates, CLIP ViT-L/14."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str = "fp32",
        colors: tuple[str, ...] = COLORS,
    ) -> None:
        self.path = path or CLIPScore.default_path
        self.revision = CLIPScore.default_revision if path is None else None
        self.dtype, self.colors = dtype, colors
        self._load(device)

    def _load(self, device: str | torch.device) -> None:
        self.encoder = load_clip(self.path, revision=self.revision, device=device, dtype=self.dtype)
        self._weights = lru_cache(maxsize=256)(self._class_weights)

    def _class_weights(self, label: str) -> torch.Tensor:
        """``[colours, d]``: the unit-length mean of the templates' embeddings."""
        templates = (*TEMPLATES, PLAIN_TEMPLATE)
        texts = [t.format(color=color, label=label) for color in self.colors for t in templates]
        embeddings = self.encoder.embed_texts(texts).unflatten(0, (-1, len(templates)))
        return F.normalize(embeddings.mean(1), dim=-1)

    def classify(
        self, image: torch.Tensor, found: Detections, indices: list[int], label: str
    ) -> list[str]:
        if not indices:
            return []
        crops = [crop_object(image, found, i) for i in indices]
        pixels = torch.cat([self.encoder.preprocess(crop[None]) for crop in crops])
        similarity = self.encoder.embed_pixels(pixels) @ self._weights(label).T
        return [self.colors[int(i)] for i in similarity.argmax(-1)]

    def to(self, device: str | torch.device) -> ClipColors:
        self._load(device)
        return self


def crop_object(image: torch.Tensor, found: Detections, index: int) -> torch.Tensor:
    """The object's box; pixels outside its mask, where there is one, grey."""
    if found.masks is not None:
        mask = torch.from_numpy(found.masks[index]).to(image.device)
        image = torch.where(mask, image, torch.full_like(image, GREY))
    height, width = image.shape[-2:]
    x0, y0, x1, y1 = (round(float(v)) for v in found.boxes[index])
    x0, y0 = min(max(x0, 0), width - 1), min(max(y0, 0), height - 1)
    return image[:, y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)]
