"""Runs the cells of a study, several at a time, each in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marble.errors import MarbleError
from marble.study.children import Children
from marble.study.plan import TRAINERS, Cell, Study
from marble.study.sharing import shared_gpu
from marble.training.borrow import has_base

# What a table or a page needs of a finished cell; checkpoints and trackers are dropped.
DROPPED = ("checkpoints", "tensorboard", "samples", "report.html")


@dataclass(frozen=True)
class Failure:
    """A cell that did not finish, and the last thing it said."""

    folder: str
    said: str


Plans = Sequence[tuple[Study, Path]]
"""Studies, each with its folder."""


def run_study(study: Study, out: Path, **how: Any) -> list[Failure]:
    """`run_studies` of one."""
    return run_studies([(study, out)], **how)[0]


def run_studies(
    plans: Plans,
    *,
    jobs: int = 1,
    gpus: int = 1,
    device: str | None = None,
    keep: bool = False,
    minutes: float | None = None,
    elsewhere: Mapping[str, Container[Cell]] = MappingProxyType({}),
    say: Callable[[str], None] = print,
) -> list[list[Failure]]:
    """Runs what is not finished yet, here or `elsewhere` (study → its runs there), and returns what
    failed of each study; a failure does not stop the others.

    Runs of all studies wait in one queue, in the order of the studies. A cell that was interrupted
    goes on from its checkpoint. SIGINT, SIGTERM or the end of `minutes` stops them: running cells
    save and end, no new one begins.
    """
    todo: list[tuple[int, Cell]] = []
    for i, (study, out) in enumerate(plans):
        out.mkdir(parents=True, exist_ok=True)
        _refuse_other_settings(study, out)
        cells = [
            cell
            for cell in study.cells
            if cell not in elsewhere.get(study.name, ()) and not finished(out / cell.folder)
        ]
        # A study that is stopped has whole seeds.
        todo += [(i, cell) for cell in sorted(cells, key=lambda cell: cell.seed)]
        done = len(study.cells) - len(cells)
        say(f"{study.name}: {len(study.cells)} runs, {done} done already")
    failures: list[list[Failure]] = [[] for _ in plans]
    seats: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seat in range(jobs):
        seats.put(seat)

    threads = int(_environment(0, jobs, gpus)["OMP_NUM_THREADS"])
    with (
        shared_gpu(jobs if todo else 0, device, say) as sharing,
        Children(threads, shared=jobs > 1) as children,
        ThreadPoolExecutor(jobs) as pool,
        _after(minutes, children.stop),
    ):

        def work(job: tuple[int, Cell]) -> None:
            if children.stopping.is_set():
                return
            (study, out), cell = plans[job[0]], job[1]
            seat, folder = seats.get(), out / cell.folder
            name = cell.folder if len(plans) == 1 else f"{study.name}/{cell.folder}"
            environment = {**_environment(seat, jobs, gpus), **sharing}
            try:
                _run(study, cell, out, device, environment, children)
            finally:
                seats.put(seat)
            if finished(folder):
                if not keep:
                    _drop(folder)
                say(f"done    {name}")
            elif children.stopping.is_set():
                say(f"stopped {name}")
            else:
                failures[job[0]].append(Failure(cell.folder, _last_words(folder)))
                say(f"FAILED  {name}: {failures[job[0]][-1].said}")

        list(pool.map(work, todo))
    if children.stopping.is_set():
        say("stopped; run the study again to go on")
    return failures


@contextmanager
def _after(minutes: float | None, stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` once so many minutes have passed inside."""
    timer = (
        None if minutes is None else threading.Timer(min(60 * minutes, threading.TIMEOUT_MAX), stop)
    )
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "run.json").read_text())["status"] == "finished")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _identity(study: Study, cell: Cell) -> dict[str, Any]:
    return {
        "trainer": study.trainer,
        "recipe": Path(study.recipe).name,
        "overrides": list(cell.overrides),
    }


def _refuse_other_settings(study: Study, out: Path) -> None:
    """A table must not mix runs of a study file with runs of what the file said before."""
    for cell in study.cells:
        try:
            before = json.loads((out / cell.folder / "cell.json").read_text())
        except (OSError, ValueError):
            continue
        if before != _identity(study, cell):
            raise MarbleError(
                f"{out / cell.folder} was run with other settings than {study.name} now has for "
                "it; remove that folder, or give another --out"
            )


def _run(
    study: Study,
    cell: Cell,
    out: Path,
    device: str | None,
    environment: dict[str, str],
    children: Children,
) -> None:
    folder, words = out / cell.folder, []
    with _free(folder) as free:
        if not free:  # a run that outlived an earlier, killed study
            return
        if (folder / "checkpoints" / "latest").exists():
            words += ["--resume", str(folder)]
        else:
            shutil.rmtree(folder, ignore_errors=True)
            words += [study.recipe, *cell.overrides, *_base(study, cell, out)]
            words += ["--out", str(folder)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cell.json").write_text(json.dumps(_identity(study, cell)))
    if device is not None:
        words += ["--device", device]
    children.run([*TRAINERS[study.trainer], *words], folder / "log.txt", environment)


def _base(study: Study, cell: Cell, out: Path) -> list[str]:
    """The untouched model is evaluated once for all cells: of the same setting, so by the same
    rewards. Which a run checks before it takes it over."""
    for other in study.cells:
        if other.setting == cell.setting and has_base(out / other.folder):
            return [f"eval.base={(out / other.folder).resolve()}"]
    return []


@contextmanager
def _free(folder: Path) -> Iterator[bool]:
    """Whether no process trains in the folder: a run holds its lock file."""
    lock = folder / ".lock"
    if not lock.is_file():
        yield True
        return
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _environment(seat: int, jobs: int, gpus: int) -> dict[str, str]:
    """Cores are shared out among the jobs, and the jobs among the GPUs."""
    environment = dict(os.environ)
    if jobs > 1 or "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // jobs))
    if gpus > 1:
        named = environment.get("CUDA_VISIBLE_DEVICES")
        visible = named.split(",") if named else [str(i) for i in range(gpus)]
        environment["CUDA_VISIBLE_DEVICES"] = visible[seat % len(visible)]
    return environment


def _last_words(folder: Path) -> str:
    with _free(folder) as free:
        if not free:
            return "another process is training in this folder"
    try:
        lines = (folder / "log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")[:300]


def _drop(folder: Path) -> None:
    for name in DROPPED:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
