"""Checkpoints that are complete or absent: safetensors and JSON only, checksummed, renamed into place.

A checkpoint folder holds `lora/` (what diffusers loads), `state/` (everything exact resume needs) and
`manifest.json`, a SHA-256 of every other file. It is written under a hidden name and renamed when
whole; `checkpoints/latest` is replaced last. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from marble.errors import CheckpointError

MANIFEST = "manifest.json"
LATEST = "latest"


@dataclass
class State:
    """What a checkpoint holds: named groups of tensors, and plain JSON."""

    tensors: dict[str, dict[str, Tensor]]
    meta: dict[str, Any]

    def snapshot(self) -> State:
        """A copy on the CPU that later steps cannot change, so that it can be saved in the background."""
        return State(
            {
                group: {
                    name: t.detach().to("cpu", copy=True).contiguous() for name, t in part.items()
                }
                for group, part in self.tensors.items()
            },
            json.loads(json.dumps(self.meta)),
        )


class CheckpointWriter:
    """Writes checkpoints of one run, in a background thread, keeping the newest `keep`."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(self, step: int, state: State, write_lora: Callable[[Path], None]) -> None:
        """Snapshots now (`write_lora` too runs now, into a staging folder); writes in the background."""
        self.wait()
        staging = self.folder / f".writing-{step_name(step)}"
        try:
            shutil.rmtree(staging, ignore_errors=True)
            (staging / "lora").mkdir(parents=True)
            write_lora(staging / "lora")
        except OSError as error:
            raise _cannot_write(staging, error) from error
        self._pending = self._pool.submit(self._finish, staging, step, state.snapshot())

    def wait(self) -> None:
        """Returns when the checkpoint under way is on disk; raises what went wrong with it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _finish(self, staging: Path, step: int, state: State) -> Path:
        try:
            (staging / "state").mkdir()
            for group, tensors in state.tensors.items():
                save_file(tensors, staging / "state" / f"{group}.safetensors")
            _write_json(staging / "state" / "trainer.json", state.meta)
            _write_json(staging / MANIFEST, {"step": step, "files": _digests(staging)})
            for path in staging.rglob("*"):
                if path.is_file():
                    _sync(path)
            final = self.folder / step_name(step)
            if final.exists():
                shutil.rmtree(final)
            os.replace(staging, final)
            _write_json(self.folder / f".{LATEST}", {"step": step, "folder": final.name})
            os.replace(self.folder / f".{LATEST}", self.folder / LATEST)
            _sync(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise _cannot_write(staging, error) from error
        for old in checkpoints(self.folder)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final


def step_name(step: int) -> str:
    return f"step-{step:06d}"


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first, complete or not."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None when it is whole."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        files: Mapping[str, str] = manifest["files"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} is not readable"
    for name, digest in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _digest(path) != digest:
            return f"{name} is damaged (checksum differs)"
    return None


def newest_complete(folder: Path) -> tuple[Path, list[str]]:
    """The newest whole checkpoint, and a note on each newer one that had to be passed over."""
    notes: list[str] = []
    for checkpoint in reversed(checkpoints(folder)):
        problem = damage(checkpoint)
        if problem is None:
            return checkpoint, notes
        notes.append(f"{checkpoint.name}: {problem}")
    detail = "; ".join(notes) or "there is none"
    raise CheckpointError(f"{folder}: no complete checkpoint to resume from ({detail})")


def load_state(checkpoint: Path) -> State:
    """Reads a checkpoint that `damage` found whole."""
    try:
        tensors = {
            p.stem: load_file(p) for p in sorted((checkpoint / "state").glob("*.safetensors"))
        }
        return State(tensors, json.loads((checkpoint / "state" / "trainer.json").read_text()))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint}: cannot be read ({error})") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's moments and step counts as flat tensors, `0.exp_avg` and so on."""
    states = optimizer.state_dict()["state"]
    return {
        f"{i}.{key}": torch.as_tensor(v) for i, part in states.items() for key, v in part.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"cannot write a checkpoint into {path.parent}: {error}. "
        "The last good checkpoint is untouched; free some space or choose another --out."
    )
