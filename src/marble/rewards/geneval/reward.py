"""The GenEval reward: detect, then judge by the published rules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.base import Metadata, Reward
from marble.rewards.geneval.detectors import ColorClassifier, Detections, Detector
from marble.rewards.geneval.rules import TAGS, Verdict, judge
from marble.rewards.options import construct
from marble.rewards.presence import Wanted, present


class GenEval(Reward):
    """1 if the picture shows what the metadata ask for, by class, number, colour and place.

    ``mode="strict"`` is what papers report (0 or 1), ``mode="partial"`` gives graded credit in
    [0, 1] for training. Applies to prompts that carry GenEval's metadata (``tag``, ``include``).

    ``detector`` is an object, or ``"mask2former"`` (transformers, COCO classes, colours by CLIP),
    or ``"centernet"`` with ``path`` to the small network's folder.
    """

    name = "geneval"
    range = (0.0, 1.0)

    def __init__(
        self,
        detector: Detector | str = "mask2former",
        *,
        mode: str = "strict",
        colors: ColorClassifier | None = None,
        path: str | Path | None = None,
        device: str | torch.device = "cpu",
        name: str | None = None,
        **options: Any,
    ) -> None:
        if mode not in ("strict", "partial"):
            raise MarbleError(f"unknown GenEval mode {mode!r}; use strict or partial")
        self.mode = mode
        if isinstance(detector, str):
            detector, colors = build(detector, path=path, device=device, colors=colors, **options)
        self.detector, self.colors = detector, colors
        if name is not None:
            self.name = name

    @classmethod
    def check(
        cls,
        detector: Detector | str = "mask2former",
        *,
        path: str | Path | None = None,
        revision: str | None = None,
        clip: str | Path | None = None,
        **options: Any,
    ) -> str:
        if detector != "mask2former":
            return f"detector in {present(Wanted(path or ''))[0]}"
        from marble.rewards.clipscore import CLIPScore
        from marble.rewards.geneval.mask2former import HUB_ID

        places = present(Wanted(path or HUB_ID, revision), *CLIPScore.wanted(path=clip))
        return f"detector in {places[0]}, colours by {places[1]}"

    def applies(self, metadata: Metadata) -> bool:
        return metadata.get("tag") in TAGS and "include" in metadata

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        verdicts = self.verdicts(images, metadata)
        if self.mode == "strict":
            return np.array([float(v.strict) for v in verdicts])
        return np.array([v.partial for v in verdicts])

    def verdicts(self, images: torch.Tensor, metadata: list[Metadata]) -> list[Verdict]:
        """The judgement of every picture, with reasons."""
        found = self.detector.detect(images)
        return [
            judge(meta, objects, partial(self._colors_of, image, objects))
            for image, objects, meta in zip(images, found, metadata, strict=True)
        ]

    def _colors_of(
        self, image: torch.Tensor, objects: Detections, indices: list[int], label: str
    ) -> list[str]:
        if objects.colors is not None:
            return [objects.colors[i] for i in indices]
        if self.colors is None:
            raise MarbleError(
                "this prompt names a colour, but the detector sees none; give a colour classifier"
            )
        return self.colors.classify(image, objects, indices, label)

    def to(self, device: str | torch.device) -> GenEval:
        self.detector.to(device)
        if self.colors is not None:
            self.colors.to(device)
        return self


def build(
    kind: str,
    *,
    path: str | Path | None,
    device: str | torch.device,
    colors: ColorClassifier | None,
    **options: Any,
) -> tuple[Detector, ColorClassifier | None]:
    """A detector by name, with the colour classifier it needs."""
    if kind == "centernet":
        from marble.rewards.geneval.centernet import CenterNetDetector

        if path is None:
            raise MarbleError("the centernet detector needs `path:`, the folder of its weights")
        options = {"folder": path, "device": device, **options}
        return construct(CenterNetDetector.load, options, "the centernet detector"), colors
    if kind == "mask2former":
        from marble.rewards.geneval.colors import ClipColors
        from marble.rewards.geneval.mask2former import load_detector

        clip = options.pop("clip", None)
        dtype = options.get("dtype", "fp32")
        detector = load_detector(path=path, device=device, **options)
        return detector, colors or ClipColors(clip, device=device, dtype=dtype)
    raise MarbleError(f"unknown detector {kind!r}; use mask2former or centernet")
