"""UnifiedReward, or any judge of its kind: a vision-language model behind a server."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.base import Metadata, Reward
from marble.rewards.http import Endpoint, WrongAnswer, get_json, key_from
from marble.rewards.pictures import to_png

URL = "http://127.0.0.1:8080/v1"
MODEL = "CodeGoat24/UnifiedReward-7b-v1.5"
TEMPLATE = """\
Here is a caption and a picture that was generated from it. Judge the picture by two things: how \
faithfully it shows what the caption asks for (objects, numbers, attributes, relations, text), and \
how good it is as a picture (coherent, clear, free of artefacts, pleasing).
Give one number from {low} (worst) to {high} (best); decimals are welcome. Close with a line of \
exactly this form:
Final Score: <number>

Caption: {prompt}"""
_FINAL = re.compile(r"final\s+score[^\w-]{0,8}(-?\d+(?:\.\d+)?)(?:\s*/\s*(\d+(?:\.\d+)?))?", re.I)


class UnifiedReward(Reward):
    """The final score a vision-language judge gives, 1 to 5; about 2 to 3.5 for SD3.5 Medium.

    Works with any server that speaks ``/v1/chat/completions`` with pictures (vLLM, SGLang,
    llama.cpp). The judge sees a PNG and ``template`` (with ``{prompt}``, ``{low}``, ``{high}``); to
    compare with numbers published for one checkpoint, give that checkpoint's own template. A reply
    without a readable score in range is asked for again, then an error: no number is ever guessed.
    """

    name = "unifiedreward"

    def __init__(
        self,
        url: str = URL,
        *,
        model: str = MODEL,
        template: str = TEMPLATE,
        low: float = 1.0,
        high: float = 5.0,
        api_key_env: str | None = "UNIFIEDREWARD_API_KEY",
        deadline_s: float = 120.0,
        retries: int = 3,
        parallel: int = 8,
        max_tokens: int = 512,
        device: str | torch.device = "cpu",
        name: str | None = None,
    ) -> None:
        if "{prompt}" not in template:
            raise MarbleError("unifiedreward: the template must contain {prompt}")
        self.endpoint = Endpoint(url, key_from(api_key_env), deadline_s, retries)
        self.model, self.template = model, template
        self.range = (float(low), float(high))
        self.parallel, self.max_tokens = parallel, max_tokens
        if name is not None:
            self.name = name

    @classmethod
    def check(cls, url: str = URL, model: str = MODEL, **options: Any) -> str:
        try:
            served = get_json(url, "/models").get("data", [])
        except MarbleError as error:
            raise MarbleError(
                f"{error}; start one, e.g. `python -m sglang.launch_server --model-path {model} "
                "--port 8080` (docs/sd35.md), and name it as `url:`"
            ) from None
        ids = [entry.get("id") for entry in served if isinstance(entry, dict)]
        if ids and model not in ids:
            raise MarbleError(f"{url} serves {', '.join(map(str, ids))}, not {model}; set `model:`")
        return f"{model} served at {url}"

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        with ThreadPoolExecutor(max(1, min(self.parallel, len(prompts)))) as pool:
            return np.array(list(pool.map(self._judge, images, prompts)), dtype=np.float64)

    def _judge(self, image: torch.Tensor, prompt: str) -> float:
        low, high = self.range
        # Plain replacement: a prompt may hold braces of its own.
        text = self.template.replace("{low}", f"{low:g}").replace("{high}", f"{high:g}")
        text = text.replace("{prompt}", prompt)
        picture = {"url": f"data:image/png;base64,{to_png(image)}"}
        content = [{"type": "image_url", "image_url": picture}, {"type": "text", "text": text}]
        payload = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
        }
        return self.endpoint.post("/chat/completions", payload, lambda a: self._read(a))

    def _read(self, answer: Any) -> float:
        try:
            reply = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise WrongAnswer("its answer is no chat completion") from None
        if not isinstance(reply, str):
            raise WrongAnswer("its reply is not text")
        return read_score(reply, *self.range)


def read_score(reply: str, low: float, high: float) -> float:
    """The last "Final Score: x" of a reply, or a reply that is nothing but a number.

    >>> read_score("Sharp, but two dogs are missing.\\n**Final Score:** 3.5", 1, 5)
    3.5
    """
    found = _FINAL.findall(reply)
    if found:
        value, of = found[-1]
        if of and float(of) != high:
            raise WrongAnswer(f"it scores out of {of}, not of {high:g}")
    else:
        value = reply.strip().rstrip(".")
        if not re.fullmatch(r"-?\d+(\.\d+)?", value):
            raise WrongAnswer(f"its reply holds no final score: {' '.join(reply.split())[:80]!r}")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high):
        raise WrongAnswer(f"its score {number:g} is outside {low:g} … {high:g}")
    return number
