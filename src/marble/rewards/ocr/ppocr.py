"""PP-OCR, whose models ship inside the ``rapidocr`` package, driven in batches by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from marble.errors import MarbleError
from marble.rewards.ocr.engines import Line
from marble.rewards.ocr.text import normalise

HEIGHT = 48  # of a line, as the recogniser was trained


def model_file(pattern: str) -> Path:
    """The newest model in the package whose name matches, e.g. ``*rec*.onnx``."""
    try:
        import rapidocr
    except ImportError as error:
        raise MarbleError(
            'the OCR reward needs rapidocr: pip install "marble-rl[rewards]"'
        ) from error
    folder = Path(rapidocr.__file__).parent / "models"
    found = sorted(folder.glob(pattern))
    if not found:
        raise MarbleError(f"rapidocr ships no {pattern} in {folder}; give `model:` yourself")
    return found[-1]


def open_session(file: Path, threads: int | None) -> Any:
    """An onnxruntime session whose idle threads sleep: spinning starves others on the cores."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MarbleError(
            'the OCR reward needs onnxruntime: pip install "marble-rl[rewards]"'
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise MarbleError(f"cannot open the OCR model {file}: {error}") from error


class Recogniser:
    """Pictures of single lines → text, by greedy CTC decoding; class 0 is the blank."""

    def __init__(self, model: Path | None = None, threads: int | None = None, batch: int = 64):
        self.session = open_session(model or model_file("*rec*.onnx"), threads)
        self.input = self.session.get_inputs()[0].name
        characters = self.session.get_modelmeta().custom_metadata_map.get("character")
        if characters is None:
            raise MarbleError("this recognition model does not carry its character set")
        self.characters = ["", *characters.splitlines(), " "]
        self.batch = batch
        columns: dict[str, list[int]] = {}
        for index, character in enumerate(self.characters):
            columns.setdefault(normalise(character), []).append(index)
        # A space says nothing about the letters around it: it counts as blank.
        self.indices_of = {char: np.array(where) for char, where in columns.items()}

    def __call__(self, lines: torch.Tensor, probabilities: bool) -> list[Line]:
        """Float RGB ``[n, 3, 48, w]`` in 0…255 → the line each of them shows."""
        out: list[Line] = []
        for part in lines.split(self.batch):
            pixels = (part.flip(1) / 127.5 - 1).contiguous().numpy()  # trained on BGR
            values = self.session.run(None, {self.input: pixels})[0]
            for row, best in zip(values, values.argmax(-1)):
                out.append(Line(self._decode(best), row if probabilities else None))
        return out

    def _decode(self, best: np.ndarray) -> str:
        changed = np.flatnonzero(np.diff(best, prepend=-1))
        return "".join(self.characters[i] for i in best[changed])


class PPOCRLine:
    """Recognition only: every picture is taken for one line of text and squashed to 48 × width.

    For pictures that show one short word and little else, such as the studio's signs; a tenth of
    the work of finding text first.
    """

    def __init__(
        self, *, model: str | Path | None = None, threads: int | None = None, width: int = 96
    ) -> None:
        self.recogniser = Recogniser(Path(model) if model else None, threads)
        self.indices_of = self.recogniser.indices_of
        self.width = width

    def read(self, images: torch.Tensor, *, probabilities: bool = False) -> list[list[Line]]:
        lines = F.interpolate(
            images.cpu().float(), (HEIGHT, self.width), mode="bilinear", antialias=True
        )
        return [[line] for line in self.recogniser(lines, probabilities)]


class PPOCR:
    """Detection and recognition: finds lines anywhere in a picture and reads each of them."""

    def __init__(
        self,
        *,
        model: str | Path | None = None,
        detector: str | Path | None = None,
        threads: int | None = None,
        least_side: int = 160,
        greatest_side: int = 960,
    ) -> None:
        from marble.rewards.ocr.regions import LineFinder

        self.recogniser = Recogniser(Path(model) if model else None, threads)
        self.indices_of = self.recogniser.indices_of
        file = Path(detector) if detector else model_file("*det*.onnx")
        self.finder = LineFinder(open_session(file, threads), least_side, greatest_side)

    def read(self, images: torch.Tensor, *, probabilities: bool = False) -> list[list[Line]]:
        crops = self.finder(images.cpu())
        # Lines of one padded width run together; the width depends on the line alone, so that
        # a text reads the same whatever else is in the batch.
        by_width: dict[int, list[tuple[int, int]]] = {}
        for i, found in enumerate(crops):
            for j, crop in enumerate(found):
                by_width.setdefault(crop.shape[-1], []).append((i, j))
        pages: list[list[Line]] = [[Line("")] * len(found) for found in crops]
        for where in by_width.values():
            stacked = torch.stack([crops[i][j] for i, j in where])
            for (i, j), line in zip(where, self.recogniser(stacked, probabilities)):
                pages[i][j] = line
        return pages
