"""OCR: can the text that the prompt puts in quotes be read in the picture?"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.base import Metadata, Reward
from marble.rewards.ocr.ctc import ctc_log_likelihood
from marble.rewards.ocr.engines import Engine, Line, build
from marble.rewards.ocr.text import match_score, normalise, quoted_text

#: log-likelihood a character at which the dense score reaches 0.
FLOOR = -10.0


class OCR(Reward):
    """1 if the quoted text is contained in what was read, else 1 − edit distance/length, ≥ 0.

    Case, white space and Unicode form do not count. A prompt without quoted text is not
    applicable. Engines: ``ppocr`` (finds and reads lines; default), ``ppocr-rec`` (takes the
    whole picture for one line), ``tesseract``; or any object with ``read``.

    ``dense=True``, for training, gives 1 + max(ℓ, −10)/10 with ℓ the recogniser's CTC
    log-likelihood of the text a character, of the best line: in [0, 1], and it still tells bad
    pictures apart where the edit distance is 0 for all of them.
    """

    name = "ocr"
    range = (0.0, 1.0)

    def __init__(
        self,
        engine: str | Engine = "ppocr",
        *,
        dense: bool = False,
        device: str | torch.device = "cpu",
        name: str | None = None,
        **options: Any,
    ) -> None:
        self._named = (engine, options) if isinstance(engine, str) else None
        self.engine = build(engine, device, **options) if isinstance(engine, str) else engine
        self.dense = dense
        if dense and not self.engine.indices_of:
            raise MarbleError("this OCR engine gives no probabilities: dense needs ppocr")
        if name is not None:
            self.name = name

    @classmethod
    def check(cls, engine: str | Engine = "ppocr", **options: Any) -> str:
        if isinstance(engine, str) and engine.startswith("ppocr"):
            from marble.rewards.ocr.ppocr import model_file

            if find_spec("onnxruntime") is None:
                raise MarbleError('needs onnxruntime: pip install "marble-rl[rewards]"')
            return f"{engine} with {model_file('*rec*.onnx').name}"
        if engine == "tesseract" and find_spec("tesserocr") is None:
            raise MarbleError("the tesseract engine needs tesserocr: pip install tesserocr")
        return f"engine {engine}"

    def applies(self, metadata: Metadata) -> bool:
        """By the prompt, where the metadata carry it; :meth:`score` gives NaN without a target."""
        prompt = metadata.get("prompt")
        return prompt is None or quoted_text(prompt) is not None

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        targets = [quoted_text(prompt) for prompt in prompts]
        wanted = [i for i, target in enumerate(targets) if target is not None]
        scores = np.full(len(prompts), np.nan)
        if wanted:
            pages = self.engine.read(images[wanted], probabilities=self.dense)
            texts = [targets[i] or "" for i in wanted]
            scores[wanted] = (
                self._likelihoods(texts, pages)
                if self.dense
                else [match_score(t, " ".join(x.text for x in p)) for t, p in zip(texts, pages)]
            )
        return scores

    def to(self, device: str | torch.device) -> OCR:
        """Reads on that device from here on; an engine given as an object stays where it is."""
        if self._named is not None:
            engine, options = self._named
            self.engine = build(engine, device, **options)
        return self

    def read(self, images: torch.Tensor) -> list[str]:
        """What the engine reads, lines joined by spaces."""
        return [" ".join(line.text for line in page) for page in self.engine.read(images)]

    def _likelihoods(self, texts: list[str], pages: list[list[Line]]) -> np.ndarray:
        plain = [normalise(text) for text in texts]
        # Of many thousand classes only the letters of these texts matter: they alone are copied
        # from a GPU.
        letters = sorted({letter for text in plain for letter in text})
        none = np.zeros(0, dtype=int)
        columns = [self.engine.indices_of.get(letter, none) for letter in ["", *letters]]
        needed = np.unique(np.concatenate(columns))
        at = {c: np.searchsorted(needed, where) for c, where in zip(["", *letters], columns)}
        owner = [i for i, page in enumerate(pages) for x in page if x.probabilities is not None]
        lines = [x.probabilities for page in pages for x in page if x.probabilities is not None]
        shown: dict[int, list[np.ndarray]] = {}
        for i, rows in zip(owner, _compact(lines, needed)):
            shown.setdefault(i, []).append(rows)
        emissions: list[np.ndarray] = []
        blanks: list[np.ndarray] = []
        owner = []
        for i, found in shown.items():
            if len(found) > 1:  # a text that is broken into lines
                found.append(np.concatenate(found))
            for rows in found:
                letter_rows = [rows[:, at[letter]].sum(1) for letter in plain[i]]
                emissions.append(np.stack(letter_rows, axis=1))
                blanks.append(rows[:, at[""]].sum(1))
                owner.append(i)
        best = np.full(len(texts), FLOOR)
        if owner:
            likelihood = ctc_log_likelihood(emissions, blanks)
            lengths = np.array([len(plain[i]) for i in owner])
            np.maximum.at(best, owner, np.minimum(likelihood / lengths, 0.0))
        return 1 - best / FLOOR


def _compact(lines: list[Any], needed: np.ndarray) -> list[np.ndarray]:
    """The needed columns of each line's ``[T, C]``; from a GPU they come over in one copy."""
    if not lines or not isinstance(lines[0], torch.Tensor):
        return [line[:, needed] for line in lines]
    picked = torch.cat(lines)[:, torch.from_numpy(needed).to(lines[0].device)].cpu().numpy()
    return np.split(picked, np.cumsum([len(line) for line in lines])[:-1])
