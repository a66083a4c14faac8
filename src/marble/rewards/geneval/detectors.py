"""What GenEval asks of a detector: the objects of each picture, by COCO-style class name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass
class Detections:
    """The m objects found in one picture, in any order.

    ``boxes`` are ``[m, 4]`` corners (x0, y0, x1, y1) in pixels; ``masks`` are ``[m, H, W]``;
    ``colors`` are given by detectors that see them, else a colour classifier is asked.
    """

    boxes: np.ndarray
    labels: list[str]
    scores: np.ndarray
    masks: np.ndarray | None = None
    colors: list[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)


class Detector(Protocol):
    """Anything that finds objects."""

    classes: tuple[str, ...]

    def detect(self, images: torch.Tensor) -> list[Detections]:
        """uint8 ``[n, 3, H, W]`` → n results."""
        ...

    def to(self, device: str | torch.device) -> Detector: ...


class ColorClassifier(Protocol):
    """Names the colour of given objects of a picture."""

    def classify(
        self, image: torch.Tensor, found: Detections, indices: list[int], label: str
    ) -> list[str]: ...

    def to(self, device: str | torch.device) -> ColorClassifier: ...
