"""The run folder: what a run leaves behind, and the lock that keeps two runs out of one folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from marble.balance import Batch
from marble.data import Sample
from marble.errors import MarbleError
from marble.training.checkpoint import step_name
from marble.training.metrics import plain

PACKAGES = ("marble-rl", "torch", "diffusers", "peft", "accelerate", "transformers", "numpy")

# A disk that is full, read-only, gone, or not ours: nothing that marble can mend.
DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EFBIG,
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ENODEV,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
)


class RunFolder:
    """Writes into one run's folder. Only the main process has one."""

    def __init__(self, path: Path, *, resuming: bool) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise MarbleError(
                f"{path}: cannot write there ({error.strerror}); choose another --out"
            ) from error
        if not resuming and (path / "metrics.jsonl").exists():
            self._lock.close()
            raise MarbleError(
                f"{path} already holds a run; go on with --resume {path}, or choose another --out"
            )
        self._started = time.time()

    def _take_lock(self) -> IO[bytes]:
        lock = (self.path / ".lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise MarbleError(
                f"{self.path}: another run is writing there; choose another --out"
            ) from None
        return lock

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def write_status(
        self,
        status: str,
        step: int,
        steps: int,
        seconds_before: float = 0.0,
        best: Mapping[str, Any] | None = None,
    ) -> None:
        self.write_json(
            "run.json",
            {
                "status": status,
                "step": step,
                "steps": steps,
                "started": self._started,
                "seconds": seconds_before + time.time() - self._started,
                "best": best,
            },
        )

    def write_pictures(self, folder: str, *args: Any, **options: Any) -> None:
        """See the function `write_pictures`; `folder` is inside the run."""
        write_pictures(self.path / folder, *args, **options)

    def write_advantages(
        self,
        step: int,
        names: list[str],
        samples: Sequence[Sample],
        scores_KN: Tensor,
        batch: Batch,
    ) -> None:
        """Scores and advantages of every sample of a step's epoch; null = does not apply."""
        self.write_json(
            f"advantages/{step_name(step)}.json",
            {
                "step": step,
                "rewards": names,
                "samples": [
                    {
                        "index": s.index,
                        "group": s.group,
                        "source": s.prompt.source,
                        "prompt": s.prompt.text,
                    }
                    for s in samples
                ],
                "score": scores_KN.double().numpy().tolist(),
                "advantage": batch.adv.adv_KN.double().numpy().round(4).tolist(),
            },
        )

    def forget_after(self, step: int) -> None:
        """Removes what belongs to later steps: a resumed run writes it again."""
        for kind in ("samples", "evals", "advantages"):
            for path in (self.path / kind).glob("step-*"):
                if path.stem > step_name(step):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        self._lock.close()


def mark_failed(path: Path) -> None:
    """Says in `run.json` that a run has ended whose main process is gone, unless it goes on."""
    with (path / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = json.loads((path / "run.json").read_text(encoding="utf-8"))
        if status.get("status") == "running":
            write_json(path / "run.json", {**status, "status": "failed"})


def write_pictures(
    folder: Path,
    step: int,
    samples: Sequence[Sample],
    images: Tensor,
    scores: Mapping[str, np.ndarray],
    *,
    trained: list[str],
    drift: Mapping[str, np.ndarray] | None = None,
) -> None:
    """PNGs and an index with prompt, source, seed and scores; scores not `trained` are held-out."""
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    entries = []
    for i, (sample, image) in enumerate(zip(samples, images)):
        name = f"{i:03d}.png"
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / name)
        entries.append(
            {
                "id": i,
                "file": name,
                "prompt": sample.prompt.text,
                "source": sample.prompt.source,
                "seed": sample.seed,
                "scores": {reward: float(row[i]) for reward, row in scores.items()},
                "drift": {name: float(row[i]) for name, row in (drift or {}).items()},
            }
        )
    index = {
        "step": step,
        "rewards": trained,
        "heldout": [name for name in scores if name not in trained],
        "samples": entries,
    }
    write_json(folder / "index.json", index)


def write_json(path: Path, value: Any) -> None:
    """Atomically: a reader sees the old file or the new one."""
    write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)  # one level: a run's folder that is gone is not made anew
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    os.replace(temporary, path)


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """Versions, device and the state of the source tree."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device_name(device),
        "processes": processes,
        "cpu_threads": torch.get_num_threads(),
        "git": _git_state(),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
        changes = subprocess.run(
            ["git", "status", "--porcelain"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes.strip())}
