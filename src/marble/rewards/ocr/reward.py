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
        self.engine = build(engine, **options) if isinstance(engine, str) else engine
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

    def read(self, images: torch.Tensor) -> list[str]:
        """What the engine reads, lines joined by spaces."""
        return [" ".join(line.text for line in page) for page in self.engine.read(images)]

    def _likelihoods(self, texts: list[str], pages: list[list[Line]]) -> np.ndarray:
        emissions: list[np.ndarray] = []
        blanks: list[np.ndarray] = []
        owner: list[int] = []
        for i, (text, page) in enumerate(zip(texts, pages)):
            shown = [line.probabilities for line in page if line.probabilities is not None]
            if len(shown) > 1:  # a text that is broken into lines
                shown.append(np.concatenate(shown))
            for probabilities in shown:
                emissions.append(self._columns(probabilities, normalise(text)))
                blanks.append(probabilities[:, self.engine.indices_of[""]].sum(1))
                owner.append(i)
        best = np.full(len(texts), FLOOR)
        if owner:
            likelihood = ctc_log_likelihood(emissions, blanks)
            lengths = np.array([len(normalise(texts[i])) for i in owner])
            np.maximum.at(best, owner, np.minimum(likelihood / lengths, 0.0))
        return 1 - best / FLOOR

    def _columns(self, probabilities: np.ndarray, text: str) -> np.ndarray:
        """``[T, L]``: the probability of each character of the text, in any case or width."""
        none = np.zeros(0, dtype=int)
        return np.stack(
            [probabilities[:, self.engine.indices_of.get(c, none)].sum(1) for c in text], axis=1
        )
