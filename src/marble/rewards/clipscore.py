"""CLIPScore: how well picture and prompt agree, as the cosine of their CLIP embeddings."""

from __future__ import annotations

import torch

from marble.rewards.base import Metadata
from marble.rewards.clip import ClipReward


class CLIPScore(ClipReward):
    """cos(image, text) of OpenAI's CLIP ViT-L/14; about 0.24 to 0.30 on good pictures.

    Preprocessing: shorter side to 224 (bicubic), centre crop, OpenAI's mean and std.
    """

    name = "clipscore"
    range = (-1.0, 1.0)
    default_path = "openai/clip-vit-large-patch14"
    default_revision = "32bd64288804d66eefd0ccbe215aa642df71cc41"

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> torch.Tensor:
        return self.encoder.cosines(images, prompts)
