"""A reward that lives elsewhere: in another environment or on another machine (`marble serve`)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.base import Metadata, Reward
from marble.rewards.fleet import Fleet
from marble.rewards.groups import ByGroups, members
from marble.rewards.http import Endpoint, Refused, WrongAnswer, get_json, key_from
from marble.rewards.pictures import to_png

KEY_VARIABLE = "MARBLE_API_KEY"


class Remote(ByGroups, Reward):
    """Scores of the reward ``reward`` of a ``marble serve`` at ``url``, or of several of them.

    The server decides what is applicable: null in its answer is NaN here. A call is repeated with
    growing pauses until ``retries`` are used up or ``deadline_s`` has passed, and then fails with
    the cause. An answer of the wrong length or with anything but numbers and null is never used.
    With several addresses batches are spread over them, and a server that dies is done without.
    ``scope="group"`` is for a reward that compares a prompt's pictures: they travel together.
    """

    name = "remote"
    may_abstain = True

    def __init__(
        self,
        url: str | Sequence[str],
        reward: str,
        *,
        scope: Literal["picture", "group"] = "picture",
        api_key_env: str = KEY_VARIABLE,
        deadline_s: float = 120.0,
        retries: int = 5,
        batch_size: int = 32,
        device: str | torch.device = "cpu",
        name: str | None = None,
    ) -> None:
        if scope not in ("picture", "group"):
            raise MarbleError(f"reward remote: scope is {scope!r}; use picture or group")
        key = key_from(api_key_env)
        self.fleet = Fleet([Endpoint(u, key, deadline_s, retries) for u in _addresses(url)])
        self.reward, self.batch_size, self.scope = reward, batch_size, scope
        self.name = name or reward

    @classmethod
    def check(
        cls,
        url: str | Sequence[str] = "",
        reward: str = "",
        scope: str = "picture",
        **options: Any,
    ) -> str:
        """Asks the servers for nothing but whether they are there and have the reward.

        Of several, one that is not there is no mistake: a run goes on without it.
        """
        start = f"start one there with `marble serve {reward}`"
        there, absent = [], []
        for address in _addresses(url):
            try:
                told = get_json(address, "/health")
            except MarbleError as error:
                absent.append(str(error))
                continue
            there.append(address)
            known = told.get("rewards", [])
            if reward not in known:
                served = ", ".join(map(str, known)) or "nothing"
                raise MarbleError(f"{address} serves {served}, not {reward!r}; {start}")
            if reward in told.get("compare", []) and scope != "group":
                raise MarbleError(
                    f"{reward} at {address} compares the pictures of a prompt; add `scope: group` "
                    "to its options"
                )
        if not there:
            raise MarbleError(f"{', '.join(absent)}; {start}")
        gone = f" ({', '.join(absent)})" if absent else ""
        return f"{reward} served at {', '.join(there)}{gone}"

    def take_notes(self) -> list[str]:
        return self.fleet.take_notes()

    def score_groups(
        self,
        images: torch.Tensor,
        prompts: list[str],
        metadata: list[Metadata],
        groups: list[Hashable],
    ) -> np.ndarray:
        """All scores; what is sent together is about as much as each server's share."""
        units = members(groups) if self.scope == "group" else [[i] for i in range(len(prompts))]
        names = {i: number for number, unit in enumerate(units) for i in unit}

        def ask(rows: list[list[int]]) -> list[tuple[int, float]]:
            flat = [i for unit in rows for i in unit]
            items = [
                {"image": to_png(images[i]), "prompt": prompts[i], "metadata": dict(metadata[i])}
                | ({"group": names[i]} if self.scope == "group" else {})
                for i in flat
            ]
            return list(zip(flat, self._ask(items, list(map(len, rows))).tolist()))

        scores = np.full(len(prompts), np.nan)
        for part in self.fleet.map(ask, self._pieces(units)):
            for i, score in part:
                scores[i] = score
        return scores

    def _pieces(self, units: list[list[int]]) -> list[list[list[int]]]:
        """Pictures, or groups of them, in runs of at most `batch_size` pictures where possible."""
        count = sum(map(len, units))
        most = min(self.batch_size, math.ceil(count / len(self.fleet)))
        pieces: list[list[list[int]]] = []
        for unit in units:
            if not pieces or sum(map(len, pieces[-1])) + len(unit) > most:
                pieces.append([])
            pieces[-1].append(unit)
        return pieces

    def _ask(self, items: list[dict[str, Any]], sizes: list[int]) -> np.ndarray:
        path = f"/v1/rewards/{quote(self.reward, safe='')}/score"
        try:
            return self.fleet.post(path, {"items": items}, lambda a: _scores(a, len(items)))
        except Refused as refusal:
            if refusal.status != 413 or len(sizes) == 1:
                raise
        half = len(sizes) // 2  # too large for the server in one piece
        cut = sum(sizes[:half])
        return np.concatenate(
            [self._ask(items[:cut], sizes[:half]), self._ask(items[cut:], sizes[half:])]
        )


def _addresses(url: str | Sequence[str]) -> list[str]:
    return [url] if isinstance(url, str) else list(url)


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
