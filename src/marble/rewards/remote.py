"""A reward that lives elsewhere: in another environment or on another machine (`marble serve`)."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.base import Metadata, Reward
from marble.rewards.http import Endpoint, Refused, WrongAnswer, get_json, key_from
from marble.rewards.pictures import to_png

KEY_VARIABLE = "MARBLE_API_KEY"


class Remote(Reward):
    """Scores of the reward ``reward`` of a ``marble serve`` at ``url``.

    The server decides what is applicable: null in its answer is NaN here. A call is repeated with
    growing pauses until ``retries`` are used up or ``deadline_s`` has passed, and then fails with
    the cause. An answer of the wrong length or with anything but numbers and null is never used.
    """

    name = "remote"
    may_abstain = True

    def __init__(
        self,
        url: str,
        reward: str,
        *,
        api_key_env: str = KEY_VARIABLE,
        deadline_s: float = 120.0,
        retries: int = 5,
        batch_size: int = 32,
        device: str | torch.device = "cpu",
        name: str | None = None,
    ) -> None:
        self.endpoint = Endpoint(url, key_from(api_key_env), deadline_s, retries)
        self.reward, self.batch_size = reward, batch_size
        self.name = name or reward

    @classmethod
    def check(cls, url: str = "", reward: str = "", **options: Any) -> str:
        """Asks the server for nothing but whether it is there and has the reward."""
        start = f"start one there with `marble serve {reward}`"
        try:
            known = get_json(url, "/health").get("rewards", [])
        except MarbleError as error:
            raise MarbleError(f"{error}; {start}") from None
        if reward not in known:
            served = ", ".join(map(str, known)) or "nothing"
            raise MarbleError(f"{url} serves {served}, not {reward!r}; {start}")
        return f"{reward} served at {url}"

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> np.ndarray:
        items = [
            {"image": to_png(image), "prompt": prompt, "metadata": dict(meta)}
            for image, prompt, meta in zip(images, prompts, metadata, strict=True)
        ]
        parts = [
            self._ask(items[start : start + self.batch_size])
            for start in range(0, len(items), self.batch_size)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _ask(self, items: list[dict[str, Any]]) -> np.ndarray:
        path = f"/v1/rewards/{quote(self.reward, safe='')}/score"
        try:
            return self.endpoint.post(path, {"items": items}, lambda a: _scores(a, len(items)))
        except Refused as refusal:
            if refusal.status != 413 or len(items) == 1:
                raise
        half = len(items) // 2  # too large for the server in one piece
        return np.concatenate([self._ask(items[:half]), self._ask(items[half:])])


def _scores(answer: Any, count: int) -> np.ndarray:
    """The scores of an answer, null as NaN; anything else than `count` of them is refused."""
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list):
        raise WrongAnswer("its answer has no list of scores")
    if len(scores) != count:
        raise WrongAnswer(f"it gave {len(scores)} scores for {count} pictures")
    for value in scores:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value)):
            raise WrongAnswer(f"it gave {str(value)[:40]!r} as a score")
    return np.array([np.nan if v is None else float(v) for v in scores])
