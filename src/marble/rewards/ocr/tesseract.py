"""Tesseract through tesserocr: fast on a CPU, for those who have it installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.ocr.engines import Line


class Tesseract:
    """Whole-picture reading. It knows no per-character probabilities, so no ``dense`` score."""

    def __init__(self, language: str = "eng", **options: Any) -> None:
        try:
            import tesserocr
        except ImportError as error:
            raise MarbleError(
                "the tesseract engine needs tesserocr and tesseract's language data; "
                "pip install tesserocr, or use engine: ppocr"
            ) from error
        self._api = tesserocr.PyTessBaseAPI(lang=language, **options)
        self.indices_of: dict[str, np.ndarray] = {}

    def read(self, images: torch.Tensor, *, probabilities: bool = False) -> list[list[Line]]:
        from PIL import Image

        pages = []
        for array in images.permute(0, 2, 3, 1).cpu().numpy():
            self._api.SetImage(Image.fromarray(array))
            pages.append([Line(line) for line in self._api.GetUTF8Text().splitlines() if line])
        return pages
