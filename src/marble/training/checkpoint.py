"""Checkpoints that are complete or absent: safetensors and JSON, checksummed, renamed into place.

A checkpoint folder holds `lora/` (what diffusers loads), `state/` (all that exact resume needs)
and `manifest.json`, a SHA-256 of every other file. It is written under a hidden name and renamed
when whole; `checkpoints/latest`, and `checkpoints/best` where it is the best, are replaced last.
What was found damaged is moved aside, never overwritten. Nothing is ever unpickled.
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

from marble import __version__
from marble.errors import CheckpointError

MANIFEST = "manifest.json"
LATEST, BEST = "latest", "best"
TRAINER = "state/trainer.json"
FORMAT = 1
"""Of the files in a checkpoint. Raised when a change keeps this version from reading older ones."""
_NEEDED = {
    "step": int,
    "epoch": int,
    "processes": int,
    "balance": dict,
    "guard": dict,
    "rewards": list,
    "recorder": dict,
}


@dataclass
class State:
    """What a checkpoint holds: named groups of tensors, and plain JSON."""

    tensors: dict[str, dict[str, Tensor]]
    meta: dict[str, Any]

    def snapshot(self) -> State:
        """A copy on the CPU that later steps cannot change: it can be saved in the background."""
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
    """Writes checkpoints of one run, in a background thread, keeping the newest `keep` and the
    best."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        for unfinished in folder.glob(".writing-*"):  # of a process that was killed
            shutil.rmtree(unfinished, ignore_errors=True)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(
        self,
        step: int,
        state: State,
        write_lora: Callable[[Path], None],
        best: dict[str, Any] | None = None,
    ) -> None:
        """Snapshots now (`write_lora` too runs now, into a staging folder); writes in the
        background. `best`: what makes it the best so far, where it is."""
        self.wait()
        staging = self.folder / f".writing-{step_name(step)}"
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            (staging / "lora").mkdir()
            write_lora(staging / "lora")
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise _cannot_write(staging, error) from error
        self._pending = self._pool.submit(self._finish, staging, step, state.snapshot(), best)

    def tell_best(self, best: Mapping[str, Any] | None) -> None:
        """Makes `checkpoints/best` what a resumed run knows of."""
        if best is None:
            (self.folder / BEST).unlink(missing_ok=True)
        elif (self.folder / step_name(best["step"])).is_dir():
            self._point(BEST, {**best, "folder": step_name(best["step"])})

    def wait(self) -> None:
        """Returns when the checkpoint under way is on disk; raises what went wrong with it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def check(self) -> None:
        """Raises what went wrong in the background, if it is known by now; never waits."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _finish(self, staging: Path, step: int, state: State, best: dict[str, Any] | None) -> Path:
        try:
            (staging / "state").mkdir()
            for group, tensors in state.tensors.items():
                save_file(tensors, staging / "state" / f"{group}.safetensors")
            _write_json(staging / TRAINER, {"format": FORMAT, "version": __version__, **state.meta})
            for path in (staging / "state").iterdir():  # safetensors leaves them to their owner
                shutil.copymode(staging / TRAINER, path)
            _write_json(staging / MANIFEST, {"step": step, "files": _digests(staging)})
            for path in (*staging.rglob("*"), staging):
                _sync(path)
            final = self.folder / step_name(step)
            if final.exists():
                set_aside(final)
            os.replace(staging, final)
            self._point(LATEST, {"step": step, "folder": final.name})
            if best is not None:
                self._point(BEST, {"step": step, "folder": final.name, **best})
            _sync(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise _cannot_write(staging, error) from error
        kept = best_of(self.folder)
        for old in checkpoints(self.folder)[: -self.keep]:
            if kept is None or old.name != kept["folder"]:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def _point(self, name: str, value: dict[str, Any]) -> None:
        _write_json(self.folder / f".{name}", value)
        os.replace(self.folder / f".{name}", self.folder / name)


def step_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(checkpoint: Path) -> int | None:
    """The step in a checkpoint's name."""
    digits = checkpoint.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else None


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first, complete or not."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def set_aside(checkpoint: Path) -> Path:
    """Takes a damaged checkpoint out of the run's way without destroying it; says where it went."""
    names = [
        f"damaged-{checkpoint.name}",
        *(f"damaged-{checkpoint.name}-{i}" for i in range(2, 99)),
    ]
    target = next(t for t in map(checkpoint.with_name, names) if not t.exists())
    os.replace(checkpoint, target)
    return target


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None when it is whole."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_bytes())
        files: Mapping[str, str] = dict(manifest["files"])
        files[TRAINER]
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


def newest_complete(folder: Path) -> tuple[Path, dict[Path, str]]:
    """The newest whole checkpoint, and what is wrong with each newer one that was passed over."""
    passed_over: dict[Path, str] = {}
    for checkpoint in reversed(checkpoints(folder)):
        problem = damage(checkpoint)
        if problem is None:
            return checkpoint, passed_over
        passed_over[checkpoint] = problem
    detail = "; ".join(f"{path.name}: {problem}" for path, problem in passed_over.items())
    detail = detail or "there is none"
    raise CheckpointError(f"{folder}: no complete checkpoint to resume from ({detail})")


def best_of(folder: Path) -> dict[str, Any] | None:
    """What `checkpoints/best` says (step, folder, value); None where there is none."""
    try:
        found = json.loads((folder / BEST).read_text())
        return found if isinstance(found, dict) and isinstance(found.get("folder"), str) else None
    except (OSError, ValueError):
        return None


def best_complete(folder: Path) -> tuple[Path, dict[Path, str]]:
    """The best checkpoint or, where that is damaged or was never told, the newest whole one."""
    best = best_of(folder)
    if best is None:
        return newest_complete(folder)
    path = folder / Path(best["folder"]).name
    problem = damage(path) if path.is_dir() else "it is missing"
    if problem is None:
        return path, {}
    found, passed_over = newest_complete(folder)
    return found, {path: problem, **passed_over}


def load_state(checkpoint: Path) -> State:
    """Reads a checkpoint that `damage` found whole."""
    try:
        tensors = {
            p.stem: load_file(p) for p in sorted((checkpoint / "state").glob("*.safetensors"))
        }
        meta = json.loads((checkpoint / TRAINER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint}: cannot be read ({error})") from error
    problem = _problem(meta)
    if problem:
        raise CheckpointError(f"{checkpoint}: {problem}")
    return State(tensors, meta)


def written_by(meta: Mapping[str, Any]) -> str:
    """Which marble wrote a checkpoint, in words."""
    version = meta.get("version")
    return f"marble {version}" if isinstance(version, str) else "an unknown version of marble"


def _problem(meta: Any) -> str | None:
    """Why `trainer.json` cannot be the one of this version, if it cannot."""
    if not isinstance(meta, dict):
        return f"{TRAINER} is no JSON object; restore it"
    if meta.get("format", FORMAT) != FORMAT:  # the first checkpoints name none
        return (
            f"written by {written_by(meta)}, in format {meta['format']}; this is marble "
            f"{__version__}, which reads format {FORMAT}. Resume with the version that wrote it"
        )
    for key, kind in _NEEDED.items():
        if not isinstance(meta.get(key), kind):
            return f"{TRAINER} has no valid {key!r} (written by {written_by(meta)}); restore it"
    return None


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
