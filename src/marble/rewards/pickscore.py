"""PickScore: what people prefer among pictures of one prompt (Kirstain et al. 2023)."""

from __future__ import annotations

import torch

from marble.rewards.base import Metadata
from marble.rewards.clip import ClipReward


class PickScore(ClipReward):
    """exp(logit scale) · cos(image, text) of a CLIP-H fine-tuned on human choices; about 20 to 24.

    The difference of two scores is the log-odds that the first picture is preferred. Tokenizer
    and preprocessing (224, bicubic, centre crop) are those of the CLIP-H it was tuned from.
    """

    name = "pickscore"
    range = (-100.0, 100.0)
    default_path = "yuvalkirstain/PickScore_v1"
    default_revision = "a4e4367c6dfa7288a00c550414478f865b875800"
    default_processor = (
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K@1c2b8495b28150b8a4922ee1c8edee224c284c0c"
    )

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> torch.Tensor:
        return self.encoder.logit_scale * self.encoder.cosines(images, prompts)
