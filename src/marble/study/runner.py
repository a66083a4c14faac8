"""Runs the cells of a study, several at a time, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from marble.errors import MarbleError
from marble.study.plan import Cell, Study

# What a table or a page needs of a finished cell; checkpoints and trackers are dropped.
DROPPED = ("checkpoints", "tensorboard", "samples", "report.html")


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 1,
    device: str | None = None,
    keep: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Runs what is not finished yet; a cell that was interrupted goes on from its checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    todo = [cell for cell in study.cells if not finished(out / cell.folder)]
    say(f"{study.name}: {len(study.cells)} runs, {len(study.cells) - len(todo)} done already")
    failures: list[str] = []

    def work(cell: Cell) -> None:
        code = _run(study, cell, out, jobs, device)
        if code == 0 and not keep:
            _drop(out / cell.folder)
        say(f"{'done  ' if code == 0 else 'FAILED'} {cell.folder}")
        if code:
            failures.append(cell.folder)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, todo))
    if failures:
        raise MarbleError(
            f"{len(failures)} of {len(todo)} runs failed: {', '.join(failures)}; "
            "see log.txt in each. Run the study again to go on."
        )


def finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "run.json").read_text())["status"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


def _run(study: Study, cell: Cell, out: Path, jobs: int, device: str | None) -> int:
    folder = out / cell.folder
    command = [sys.executable, "-m", "marble", "train"]
    if (folder / "checkpoints" / "latest").exists():
        command += ["--resume", str(folder)]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        command += [study.recipe, *cell.overrides, "--out", str(folder)]
    if device is not None:
        command += ["--device", device]
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.run(command, stdout=log, stderr=log, env=environment).returncode


def _drop(folder: Path) -> None:
    for name in DROPPED:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
