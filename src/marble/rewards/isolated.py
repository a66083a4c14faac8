"""A reward in a process of its own: one that hangs is killed, one that dies is started again.

The two processes exchange JSON and the pictures' bytes over a socket; nothing that the worker says
is unpickled. See `worker.py` for the other side.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Hashable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from marble.errors import MarbleError
from marble.rewards.base import Metadata, Reward
from marble.rewards.groups import ByGroups
from marble.rewards.guard import Relayed

LOAD_S = 1800.0
"""Seconds a worker may take to load its reward: checkpoints may have to be downloaded."""
APPLIES_S = 60.0
LOOK_S = 0.1
"""Seconds between looks at a worker's memory."""
MAX_ANSWER = 1 << 28


class Gone(Exception):
    """A reward's own process has ended in the middle of its work."""


class Isolated(ByGroups, Reward):
    """The reward `reward` as a worker process has it, with at most `memory_gb` of main memory.

    Its random numbers are the worker's own, so that of a reward that draws them only the others'
    part of a resumed run is exact.
    """

    def __init__(
        self, reward: str, options: Mapping[str, Any], *, memory_gb: float | None = None
    ) -> None:
        self._message = _load_message(reward, options)
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # each of them has a worker
        half = psutil.virtual_memory().total / 2 / processes
        self.memory = int(half if memory_gb is None else memory_gb * 1e9)
        self._worker: _Worker | None = None
        self._lock = threading.Lock()
        self._applies = functools.lru_cache(1 << 16)(self._ask_applies)
        self.name = reward
        told = self.prepare()
        self.name, self.range = str(told["name"]), (told["range"][0], told["range"][1])
        self.scope = "picture" if told["scope"] == "picture" else "group"
        self.may_abstain = bool(told["may_abstain"])

    def prepare(self) -> dict[str, Any]:
        """Starts the worker unless one is there; what it says about its reward."""
        with self._lock:
            if self._worker is None or not self._worker.alive:
                if self._worker is not None:
                    self._worker.kill()
                self._worker = _Worker(self.memory)
                try:
                    self._told = self._worker.ask(self._message, LOAD_S)
                except (Relayed, Gone) as error:
                    self._worker.kill()
                    raise MarbleError(str(error)) from None
            return self._told

    def applies(self, metadata: Metadata) -> bool:
        return self._applies(json.dumps(metadata, sort_keys=True, default=str))

    def _ask_applies(self, metadata: str) -> bool:
        return bool(self._request({"do": "applies", "metadata": metadata}, seconds=APPLIES_S))

    def score_groups(
        self,
        images: torch.Tensor,
        prompts: list[str],
        metadata: list[Metadata],
        groups: list[Hashable],
    ) -> np.ndarray:
        order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
        request = {
            "do": "score",
            "shape": list(images.shape),
            "prompts": prompts,
            "metadata": [json.dumps(m, default=str) for m in metadata],
            "groups": [order[g] for g in groups],
        }
        pixels = images.contiguous().cpu().numpy().tobytes()
        return np.array(self._request(request, pixels), dtype=np.float64)

    def _request(
        self, request: dict[str, Any], pixels: bytes | None = None, seconds: float = 1e9
    ) -> Any:
        self.prepare()
        worker = self._worker
        assert worker is not None
        return worker.ask(request, seconds, pixels)

    def abort(self) -> None:
        """Ends what the worker is doing, by ending it; the next call starts another."""
        if self._worker is not None:
            self._worker.kill()

    def close(self) -> None:
        self.abort()

    def to(self, device: str | torch.device) -> Isolated:
        if self._message["options"].get("device") != str(device):
            self._message["options"]["device"] = str(device)
            self.abort()
            self.prepare()
        return self


class _Worker:
    """One worker process and the socket to it."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "marble.rewards.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2 if _is_open(2) else subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for us to deal with; and so all of it is killed
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        self.pipe = Connection(ours.detach())
        self._end = weakref.finalize(self, _kill, self.process)

    @property
    def alive(self) -> bool:
        return self._end.alive and self.process.poll() is None

    def kill(self) -> None:
        self._end()

    def ask(self, request: dict[str, Any], seconds: float, pixels: bytes | None = None) -> Any:
        """Its answer; `Relayed` with what it raised; `Gone` when it is no more."""
        try:
            self.pipe.send_bytes(json.dumps(request).encode())
            if pixels is not None:
                self.pipe.send_bytes(pixels)
            answer = json.loads(self._wait(time.monotonic() + seconds))
        except (EOFError, OSError, ValueError) as error:
            raise self._gone(error) from None
        if "error" in answer:
            raise Relayed(str(answer["error"]))
        return answer["value"]

    def _wait(self, until: float) -> bytes:
        seen = psutil.Process(self.process.pid)
        while not self.pipe.poll(LOOK_S):
            if _used(seen) > self.memory:
                self.kill()
                raise Gone(f"its process needed more than {self.memory / 1e9:.3g} GB: killed")
            if time.monotonic() > until:
                self.kill()
                raise Gone("its process did not answer: killed")
        return self.pipe.recv_bytes(MAX_ANSWER)

    def _gone(self, error: Exception) -> Gone:
        try:
            status: int | str = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = f"still running, but {type(error).__name__}"
        self.kill()
        if isinstance(status, int) and status < 0:
            with suppress(ValueError):
                status = signal.Signals(-status).name
        return Gone(f"its process ended (status {status})")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The worker with all that it started; its session is its own."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)


def _used(process: psutil.Process) -> int:
    """Main memory of a process and its children, in bytes."""
    total = 0
    with suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _load_message(reward: str, options: Mapping[str, Any]) -> dict[str, Any]:
    place, colon, attribute = reward.rpartition(":")
    if colon and place.endswith(".py"):  # the working folder may be another when it restarts
        reward = f"{Path(place).absolute()}:{attribute}"
    told = {k: str(v) if isinstance(v, torch.device | Path) else v for k, v in options.items()}
    try:
        return {"do": "load", "reward": reward, "options": json.loads(json.dumps(told))}
    except (TypeError, ValueError) as error:
        raise MarbleError(f"reward {reward}: options of an isolated reward: {error}") from None
