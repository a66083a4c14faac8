"""Diversity: how far a picture is from the others of its prompt."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from marble.errors import MarbleError
from marble.evaluation.drift import diversity as pixel_diversity
from marble.rewards.base import Metadata
from marble.rewards.clip import ClipReward
from marble.rewards.clipscore import CLIPScore
from marble.rewards.groups import ByGroups, members

By = Literal["encoder", "pixels"]


class Diversity(ByGroups, ClipReward):
    """Leave-one-out distance: the mean over the other pictures of the prompt.

    ``by="encoder"``: 1 − cos of CLIP's image embeddings, 0 to 2, about content and style.
    ``by="pixels"``: RMS distance of 16 × 16 thumbnails, 0 to 1, about layout and colour; needs no
    model. Neither is moved by grain. A picture alone in its group has no score.
    """

    name = "diversity"
    scope = "group"
    default_path = CLIPScore.default_path
    default_revision = CLIPScore.default_revision

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        by: By = "encoder",
        device: str | torch.device = "cpu",
        name: str | None = None,
        **options: Any,
    ) -> None:
        _check(by, path, options)
        self.by = by
        self.range = (0.0, 1.0) if by == "pixels" else (0.0, 2.0)
        if by == "encoder":
            super().__init__(path, device=device, **options)
        if name is not None:
            self.name = name

    @classmethod
    def check(cls, by: By = "encoder", **options: Any) -> str:
        _check(by, None, {})
        return "needs no weights" if by == "pixels" else super().check(**options)

    def score_groups(
        self,
        images: torch.Tensor,
        prompts: list[str],
        metadata: list[Metadata],
        groups: list[Hashable],
    ) -> np.ndarray:
        """Several prompts' pictures at once, so that the encoder sees one batch."""
        if self.by == "pixels":
            return pixel_diversity(images.cpu().numpy(), groups)
        embeddings = self.encoder.embed_images(images).double().cpu().numpy()
        scores = np.full(len(prompts), np.nan)
        for rows in members(groups):
            if len(rows) > 1:
                cosines = embeddings[rows] @ embeddings[rows].T
                others = (cosines.sum(1) - np.diag(cosines)) / (len(rows) - 1)
                scores[rows] = 1 - others
        return scores

    def to(self, device: str | torch.device) -> Diversity:
        if self.by == "encoder":
            super().to(device)
        return self


def _check(by: str, path: str | Path | None, options: dict[str, Any]) -> None:
    if by not in ("encoder", "pixels"):
        raise MarbleError(f"reward diversity: by is {by!r}; use encoder or pixels")
    if by == "pixels" and (path or options):
        given = ["path"] if path else list(options)
        raise MarbleError(f"reward diversity: by=pixels has no encoder, so no {given[0]}")
