"""What the OCR reward asks of an engine that reads pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.options import construct


@dataclass
class Line:
    """One line of text; ``probabilities`` ``[T, C]`` are kept where the engine has and is asked,
    as a tensor if they are on a GPU."""

    text: str
    probabilities: np.ndarray | torch.Tensor | None = None


class Engine(Protocol):
    """Reads pictures. ``indices_of`` is empty for engines without per-character probabilities."""

    #: Normalised character → columns of ``probabilities`` that stand for it ("" is the blank).
    indices_of: dict[str, np.ndarray]

    def read(self, images: torch.Tensor, *, probabilities: bool = False) -> list[list[Line]]:
        """uint8 ``[n, 3, H, W]`` → the lines of each picture, in reading order."""
        ...


def build(engine: str, device: str | torch.device = "cpu", **options: Any) -> Engine:
    """An engine by name; tesseract knows no device."""
    target: Callable[..., Engine]
    if engine == "ppocr":
        from marble.rewards.ocr.ppocr import PPOCR as target
    elif engine == "ppocr-rec":
        from marble.rewards.ocr.ppocr import PPOCRLine as target
    elif engine == "tesseract":
        from marble.rewards.ocr.tesseract import Tesseract as target
    else:
        raise MarbleError(f"unknown OCR engine {engine!r}; use ppocr, ppocr-rec or tesseract")
    if engine.startswith("ppocr"):
        options["device"] = device
    return construct(target, options, f"the OCR engine {engine}")
