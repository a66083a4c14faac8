"""The process of an isolated reward: `python -m marble.rewards.worker SOCKET`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marble.errors import MarbleError
from marble.rewards.base import RewardLike, scope_of
from marble.rewards.groups import ask
from marble.rewards.guard import contained, leave, said
from marble.rewards.registry import load


def main(number: int) -> None:
    """Answers requests until the other side is gone."""
    with suppress(OSError):  # should memory run out, the kernel is to end this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(number)
    with suppress(EOFError, OSError):
        request = json.loads(pipe.recv_bytes())
        reward = _answer(pipe, lambda: load(request["reward"], **request["options"]), _described)
        while reward is not None:
            _serve(pipe, reward, json.loads(pipe.recv_bytes()))
    leave(0)  # not held up by threads of the reward's


def _serve(pipe: Connection, reward: RewardLike, request: dict[str, Any]) -> None:
    if request["do"] == "applies":
        _answer(pipe, lambda: bool(reward.applies(json.loads(request["metadata"]))))
    else:
        pixels = bytearray(pipe.recv_bytes())
        _answer(pipe, lambda: _scores(reward, request, pixels))


def _answer(
    pipe: Connection, work: Callable[[], Any], shown: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Runs a reward's code and sends what it gives; None where it fails."""
    value, answer = None, {}
    try:
        with contained():
            value = work()
            answer = {"value": shown(value)}
    except BaseException as error:
        answer = {"error": str(error) if isinstance(error, MarbleError) else said(error)}
    pipe.send_bytes(json.dumps(answer).encode())
    return value


def _described(reward: RewardLike) -> dict[str, Any]:
    return {
        "name": reward.name,
        "range": list(reward.range),
        "scope": scope_of(reward),
        "may_abstain": bool(getattr(reward, "may_abstain", False)),
    }


def _scores(reward: RewardLike, request: dict[str, Any], pixels: bytearray) -> list[float]:
    images = torch.from_numpy(np.frombuffer(pixels, dtype=np.uint8).reshape(request["shape"]))
    metadata = [json.loads(m) for m in request["metadata"]]
    return ask(reward, images, request["prompts"], metadata, request["groups"]).tolist()


def _end_with(parent: int) -> None:
    """Ends this process soon after the one that started it, whatever the reward is doing."""
    while os.getppid() == parent:
        time.sleep(1.0)
    leave(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
