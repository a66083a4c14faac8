"""`metrics.jsonl` and the trackers beside it."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marble.errors import CheckpointError, MarbleError


def plain(value: Any) -> Any:
    """JSON knows no NaN: what is undefined becomes null."""
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_length(path: Path, length: int) -> None:
    """Refuses a file that is shorter than it was at the checkpoint; changes nothing."""
    there = path.stat().st_size if path.exists() else 0
    if there < length:
        raise CheckpointError(
            f"{path}: {there} bytes, but {length} at the checkpoint; restore the file"
        )


class JsonLines:
    """An append-only file of JSON objects that can be cut back to where a checkpoint was made."""

    def __init__(self, path: Path, length: int = 0) -> None:
        """Keeps the first `length` bytes of what is there and appends after them."""
        check_length(path, length)
        self.path = path
        self._file = path.open("ab")
        self._file.truncate(length)
        self._file.seek(length)

    @property
    def length(self) -> int:
        return self._file.tell()

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(plain(record), allow_nan=False) + "\n").encode())
        self._file.flush()

    def sync(self) -> None:
        """Returns when all that was written is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Trackers:
    """TensorBoard always; Weights & Biases and trackio when the recipe asks for them."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        project: str,
        run: str,
        config: dict,
        ids: dict[str, str],
        step: int = 0,
    ) -> None:
        """`ids` and `step`: of the run to go on with, and the last step that counts."""
        self.ids, self._step = dict(ids), step
        self._sinks: list[Any] = []
        for name in names:
            self._sinks.append(getattr(self, f"_{name}")(folder, project, run, config))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        numbers = {
            k: float(v)
            for k, v in values.items()
            if isinstance(v, (int, float)) and math.isfinite(v) and k != "step"
        }
        for sink in self._sinks:
            sink.log(step, numbers)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def _tensorboard(self, folder: Path, project: str, run: str, config: dict) -> Any:
        return _TensorBoard(folder / "tensorboard", self._step + 1)

    def _wandb(self, folder: Path, project: str, run: str, config: dict) -> Any:
        wandb = _import("wandb")
        self.ids.setdefault("wandb", wandb.util.generate_id())
        live = wandb.init(
            project=project,
            name=run,
            config=config,
            dir=folder,
            id=self.ids["wandb"],
            resume="allow",
        )
        return _Calls(lambda step, values: live.log(values, step=step), live.finish)

    def _trackio(self, folder: Path, project: str, run: str, config: dict) -> Any:
        trackio = _import("trackio")
        self.ids.setdefault("trackio", run)
        live = trackio.init(
            project=project, name=self.ids["trackio"], config=config, resume="allow"
        )
        return _Calls(lambda step, values: live.log(values, step=step), trackio.finish)


class _TensorBoard:
    def __init__(self, folder: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # The writer's thread hands an error, such as a full disk, to the next call; it also lets it
        # go unhandled, and Python would print it in the middle of everything.
        self._hook = threading.excepthook
        threading.excepthook = self._unless_writing
        # What a run that was cut off had logged from step `first` on is taken back.
        self._writer = SummaryWriter(str(folder), purge_step=first if first > 1 else None)

    def _unless_writing(self, failure: threading.ExceptHookArgs) -> None:
        if type(failure.thread).__name__ != "_AsyncWriterThread":
            self._hook(failure)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            threading.excepthook = self._hook


class _Calls:
    def __init__(self, log: Any, close: Any) -> None:
        self.log, self.close = log, close


def check_trackers(names: Sequence[str]) -> None:
    """Refuses trackers that are not installed, before anything is written."""
    for name in names:
        if name != "tensorboard":
            _import(name)


def _import(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise MarbleError(
            f"log.trackers names {name}, which is not installed: pip install 'marble-rl[trackers]'"
        ) from error
