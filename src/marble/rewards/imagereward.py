"""ImageReward: human preference by a BLIP that sees both prompt and picture (Xu et al. 2023)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from marble.errors import MarbleError
from marble.rewards.aesthetic import AestheticHead
from marble.rewards.base import UNBOUNDED, Metadata, Reward
from marble.rewards.blip import part, text_model, vision_model
from marble.rewards.precision import as_dtype, kept_in
from marble.rewards.preprocess import Preprocess
from marble.rewards.presence import Wanted, present
from marble.rewards.weights import local_folder, local_weights

MEAN, STD = 0.16717362830052426, 1.0333394966054072  # of the raw score on its authors' data
TOKENS = 35


class ImageReward(Reward):
    """(raw − mean)/std of a linear head on BLIP's first text token; about −2 to 2.

    ``path`` is the published ``ImageReward.pt``; ``tokenizer`` that of BERT. Preprocessing: shorter
    side to 224 (bicubic), centre crop, CLIP's mean and std.
    """

    name = "imagereward"
    range = UNBOUNDED
    default_path = "zai-org/ImageReward/ImageReward.pt"
    default_revision = "5736be03b2652728fb87788c9797b0570450ab72"
    default_tokenizer = "google-bert/bert-base-uncased@86b5e0934494bd15c9632b12f734a8a67f723594"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str = "fp32",
        batch_size: int = 32,
        name: str | None = None,
    ) -> None:
        from transformers import AutoTokenizer

        revision = revision or (self.default_revision if path is None else None)
        file = local_weights(path or self.default_path, revision)
        words = local_folder(tokenizer or self.default_tokenizer, None, weights=False)
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
            self.vision = vision_model(part(state, "blip.visual_encoder."))
            self.text = text_model(part(state, "blip.text_encoder."))
            self.head: nn.Module = AestheticHead.from_state(part(state, "mlp."))
            self.tokenizer = AutoTokenizer.from_pretrained(words)
        except Exception as error:
            raise MarbleError(f"cannot load ImageReward from {file}: {error}") from error
        self.preprocess = Preprocess(*[self.vision.config.image_size] * 2)
        self.batch_size = batch_size
        for module in (self.vision, self.text):
            kept_in(module, as_dtype(dtype))
        self.head.eval().requires_grad_(False)
        self.to(device)
        if name is not None:
            self.name = name

    @classmethod
    def check(
        cls,
        path: str | Path | None = None,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        **options: Any,
    ) -> str:
        revision = revision or (cls.default_revision if path is None else None)
        weights, _ = present(
            Wanted(path or cls.default_path, revision),
            Wanted(tokenizer or cls.default_tokenizer, weights=False),
        )
        return f"weights in {weights}"

    @torch.no_grad()
    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> torch.Tensor:
        parts = []
        for start in range(0, len(prompts), self.batch_size):
            few = slice(start, start + self.batch_size)
            parts.append(self._score_batch(images[few], prompts[few]))
        return torch.cat(parts)

    def _score_batch(self, images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        pixels = self.preprocess(images).to(self.device)
        seen = self.vision(pixel_values=pixels).last_hidden_state
        tokens = self.tokenizer(
            prompts, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
        ).to(self.device)
        read = self.text(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(seen.shape[:2], device=self.device).long(),
        ).last_hidden_state
        return ((self.head(read[:, 0].float()) - MEAN) / STD).cpu()

    def to(self, device: str | torch.device) -> ImageReward:
        self.device = torch.device(device)
        for module in (self.vision, self.text, self.head):
            module.to(self.device)
        return self
