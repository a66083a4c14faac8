"""PP-OCR, whose models ship inside the ``rapidocr`` package, driven in batches: by onnxruntime, and
on a GPU by torch."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from marble.errors import MarbleError
from marble.rewards.ocr.engines import Line
from marble.rewards.ocr.onnx_torch import TorchGraph
from marble.rewards.ocr.text import normalise
from marble.rewards.ocr.workers import Workers

HEIGHT = 48  # of a line, as the recogniser was trained
REMEMBERED = 4096  # texts a recogniser keeps


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


def open_session(file: Path) -> Any:
    """An onnxruntime session of one thread: that of whoever calls it (`Workers`)."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MarbleError(
            'the OCR reward needs onnxruntime: pip install "marble-rl[rewards]"'
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise MarbleError(f"cannot open the OCR model {file}: {error}") from error


class Recogniser:
    """Pictures of single lines → text, by greedy CTC decoding; class 0 is the blank.

    On the CPU it remembers the texts of the latest lines, so that a reward which wants only texts
    costs nothing where another has just had the probabilities of the same pictures. On a GPU
    reading again is cheaper than recognising a picture. Several threads may read at once.
    """

    def __init__(
        self,
        model: Path | None = None,
        threads: int | None = None,
        batch: int = 8,
        device: torch.device | None = None,
    ) -> None:
        file = model or model_file("*rec*.onnx")
        self.device = device or torch.device("cpu")
        self.graph = self.session = None
        if not _by_torch(self.device):
            self.session = open_session(file)
            self.input = self.session.get_inputs()[0].name
            characters = self.session.get_modelmeta().custom_metadata_map.get("character")
        else:
            self.graph = TorchGraph(file, self.device)
            characters = self.graph.graph.metadata.get("character")
        if characters is None:
            raise MarbleError("this recognition model does not carry its character set")
        self.characters = ["", *characters.splitlines(), " "]
        self.batch = batch
        self._workers = Workers(threads or torch.get_num_threads())
        columns: dict[str, list[int]] = {}
        for index, character in enumerate(self.characters):
            columns.setdefault(normalise(character), []).append(index)
        # A space says nothing about the letters around it: it counts as blank.
        self.indices_of = {char: np.array(where) for char, where in columns.items()}
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, lines: torch.Tensor, probabilities: bool) -> list[Line]:
        """Float RGB ``[n, 3, 48, w]`` in 0…255 → the line each of them shows.

        Probabilities are always computed. A remembered text may stem from a batch of other
        lines, which changes probabilities in their last bits and so, in practice, no text.
        """
        if self.graph is not None:
            return self._run(lines, probabilities)
        keys = [_digest(line) for line in lines.contiguous().numpy()]
        if probabilities:
            out = self._run(lines, probabilities=True)
            self._remember(dict(zip(keys, (line.text for line in out))))
            return out
        texts = self._recall(keys)
        unknown = {key: i for i, key in enumerate(keys) if key not in texts}
        if unknown:
            ran = self._run(lines[list(unknown.values())], probabilities=False)
            read = {key: line.text for key, line in zip(unknown, ran)}
            self._remember(read)
            texts |= read
        return [Line(texts[key]) for key in keys]

    def _run(self, lines: torch.Tensor, probabilities: bool) -> list[Line]:
        out: list[Line] = []
        at_once = (
            self.batch if self.graph is not None else max(64, 2 * self.batch * self._workers.count)
        )
        for several in lines.split(at_once):
            pixels = (several.flip(1) / 127.5 - 1).contiguous()  # trained on BGR
            for values, bests in self._forward(pixels):
                for row, best in zip(values, bests):
                    out.append(Line(self._decode(best), row if probabilities else None))
        return out

    def _forward(self, pixels: torch.Tensor) -> list[tuple[Any, np.ndarray]]:
        """Probabilities [n, T, C], left on the device where they are, and the best classes; in
        parts."""
        if self.session is not None:
            array = pixels.numpy()
            starts = range(0, len(array), self.batch)
            return self._workers.map(self._on_cpu, [array[i : i + self.batch] for i in starts])
        assert self.graph is not None
        found = self.graph(pixels)
        return [(found, found.argmax(-1).cpu().numpy())]

    def _on_cpu(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self.session is not None
        values = self.session.run(None, {self.input: pixels})[0]
        return values, values.argmax(-1)

    def _recall(self, keys: list[bytes]) -> dict[bytes, str]:
        with self._lock:
            known = {key: self._texts[key] for key in keys if key in self._texts}
            for key in known:
                self._texts.move_to_end(key)
        return known

    def _remember(self, texts: dict[bytes, str]) -> None:
        with self._lock:
            for key, text in texts.items():
                self._texts[key] = text
                self._texts.move_to_end(key)
            while len(self._texts) > REMEMBERED:
                self._texts.popitem(last=False)

    def _decode(self, best: np.ndarray) -> str:
        changed = np.flatnonzero(np.diff(best, prepend=-1))
        return "".join(self.characters[i] for i in best[changed])


def _by_torch(device: torch.device) -> bool:
    return device.type != "cpu"


def _digest(line: np.ndarray) -> bytes:
    """Of the shape and the pixels."""
    digest = hashlib.blake2b(str(line.shape).encode(), digest_size=16)
    digest.update(line.data)
    return digest.digest()


_shared: weakref.WeakValueDictionary[tuple[Any, ...], Recogniser] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def load_recogniser(
    model: str | Path | None = None,
    threads: int | None = None,
    device: str | torch.device = "cpu",
) -> Recogniser:
    """The recogniser of a model file, shared between all who ask for the same one."""
    file = Path(model) if model else model_file("*rec*.onnx")
    threads, device = threads or torch.get_num_threads(), torch.device(device)
    # A session's threads do not survive a fork: a child process opens its own.
    key = (file.resolve(), threads, device, os.getpid())
    with _lock:
        recogniser = _shared.get(key)
        if recogniser is None:
            batch = 8 if device.type == "cpu" else 512  # of a CPU's cache, or a GPU's width
            recogniser = _shared[key] = Recogniser(file, threads, batch, device)
        return recogniser


class PPOCRLine:
    """Recognition only: every picture is taken for one line of text and squashed to 48 × width.

    For pictures that show one short word and little else, such as the studio's signs; a tenth of
    the work of finding text first.
    """

    def __init__(
        self,
        *,
        model: str | Path | None = None,
        threads: int | None = None,
        width: int = 96,
        device: str | torch.device = "cpu",
    ) -> None:
        self.recogniser = load_recogniser(model, threads, device)
        self.indices_of = self.recogniser.indices_of
        self.width = width

    def read(self, images: torch.Tensor, *, probabilities: bool = False) -> list[list[Line]]:
        pixels = images.to(self.recogniser.device).float()
        lines = F.interpolate(pixels, (HEIGHT, self.width), mode="bilinear", antialias=True)
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
        device: str | torch.device = "cpu",
    ) -> None:
        from marble.rewards.ocr.regions import LineFinder

        self.recogniser = load_recogniser(model, threads, device)
        self.indices_of = self.recogniser.indices_of
        file = Path(detector) if detector else model_file("*det*.onnx")
        workers = Workers(threads or torch.get_num_threads())
        self.finder = LineFinder(open_session(file), least_side, greatest_side, workers)

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
