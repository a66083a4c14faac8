"""HPSv2.1: human preference (Wu et al. 2023), a fine-tuned open_clip ViT-H-14."""

from __future__ import annotations

import torch

from marble.rewards.base import Metadata
from marble.rewards.clip import ClipReward


class HPSv2(ClipReward):
    """cos(image, text) of a CLIP-H tuned on human rankings; about 0.20 to 0.36.

    ``path`` is the published ``HPS_v2.1_compressed.pt``; configuration and tokenizer are those of
    the CLIP-H it was tuned from. Preprocessing: longer side to 224 (bicubic), black around it,
    CLIP's mean and std.
    """

    name = "hpsv2"
    range = (-1.0, 1.0)
    default_path = "xswu/HPSv2/HPS_v2.1_compressed.pt"
    default_revision = "697403c78157020a1ae59d23f111aa58ced35b0a"
    default_processor = (
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K@1c2b8495b28150b8a4922ee1c8edee224c284c0c"
    )
    pads = True

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> torch.Tensor:
        return self.encoder.cosines(images, prompts)
