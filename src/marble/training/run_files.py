"""The files of a run while it goes on: opened, cut back, and what happens when a disk fails."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from marble.errors import CheckpointError, MarbleError
from marble.recipe import Recipe
from marble.training.checkpoint import (
    CheckpointWriter,
    State,
    best_complete,
    checkpoints,
    newest_complete,
    set_aside,
)
from marble.training.folder import DISK_ERRORS, RunFolder, environment, mark_failed
from marble.training.loop import Trainer
from marble.training.metrics import JsonLines, Trackers, check_length, check_trackers
from marble.training.processes import Processes

Say = Callable[[str], None]


class RunFiles:
    """Holds a run's folder, on the main process; on the others `folder` is None."""

    def __init__(self, recipe: Recipe, path: Path, processes: Processes) -> None:
        self.recipe, self.path, self.processes = recipe, path, processes
        self.folder: RunFolder | None = None
        self.best: dict[str, Any] | None = None
        """The best checkpoint so far: its step, value, and by what."""
        self._seconds_before = 0.0
        self._damaged: dict[Path, str] = {}
        self._failure: MarbleError | None = None

    # -- taking the folder ------------------------------------------------------------------

    def take(self, *, resuming: bool) -> None:
        """Takes the folder. The recipe goes in first: from then on the run can be resumed.

        A run to resume is only locked: nothing in it changes before `take_back`.
        """
        self.folder = RunFolder(self.path, resuming=resuming)
        if resuming:
            return
        try:
            self.folder.write_text("config.yaml", self.recipe.dump())
            self._open(0, {})
        except OSError as error:
            raise self.cannot_write(error) from error

    def find_checkpoint(self, say: Say) -> Path | None:
        """The newest whole checkpoint; None where the run has none yet."""
        assert self.folder is not None
        if not checkpoints(self.folder.checkpoints):
            say("there is no checkpoint yet: starting over")
            return None
        found, self._damaged = newest_complete(self.folder.checkpoints)
        return found

    def remember(self, meta: dict[str, Any]) -> None:
        """What all processes know of the run that goes on."""
        self._seconds_before, self.best = meta.get("seconds", 0.0), meta.get("best")

    def take_back(self, step: int, meta: dict[str, Any], say: Say) -> None:
        """Takes the files back to where the checkpoint was made: the resume has been accepted."""
        assert self.folder is not None
        for name in ("metrics", "evals"):  # the last reasons to refuse
            check_length(self.path / f"{name}.jsonl", meta.get(name, 0))
        check_trackers(self.recipe.log.trackers)
        try:
            if not step:  # starting over: it is this recipe's run now
                self.folder.write_text("config.yaml", self.recipe.dump())
            for path, problem in self._damaged.items():
                say(f"passed over {path.name}: {problem}; kept as {set_aside(path).name}")
            self._open(step, meta)
        except OSError as error:
            raise self.cannot_write(error) from error

    def _open(self, step: int, meta: dict[str, Any]) -> None:
        """Opens all files, without what a run that was cut off wrote after `step`."""
        assert self.folder is not None
        size = self.processes.size
        self.folder.write_json("environment.json", environment(self.processes.device, size))
        self.folder.forget_after(step)
        self.metrics = JsonLines(self.path / "metrics.jsonl", meta.get("metrics", 0))
        self.evals = JsonLines(self.path / "evals.jsonl", meta.get("evals", 0))
        log = self.recipe.log
        names = list(dict.fromkeys(["tensorboard", *log.trackers]))
        self.trackers = Trackers(
            names,
            self.path,
            log.project,
            log.run_name or self.path.name,
            self.recipe.model_dump(mode="json"),
            meta.get("trackers", {}),
            step,
        )
        self.checkpoints = CheckpointWriter(
            self.folder.checkpoints, self.recipe.train.keep_checkpoints
        )
        self.checkpoints.tell_best(self.best)
        self._started = time.time()

    # -- writing ----------------------------------------------------------------------------

    def attempt(self, write: Callable[[], None]) -> None:
        """Writes, on the main process. A failure waits until all can hear of it, in `settle`;
        meanwhile the main process must not stay away from what they do together."""
        if self.folder is None or self._failure is not None:
            return
        if not self.path.is_dir():  # writing would begin another folder under a lost mount
            gone = OSError(errno.ENOENT, "the folder is gone")
            self._failure = self.cannot_write(gone)
            return
        try:
            write()
        except CheckpointError as error:
            self._failure = error
        except OSError as error:
            if error.errno not in DISK_ERRORS and self.path.is_dir():
                raise
            self._failure = self.cannot_write(error)

    def settle(self) -> None:
        """Fails, on all processes, where the main one could not write."""

        def tell() -> None:
            if self._failure is not None:
                raise self._failure

        self.processes.together(tell)

    def write_status(self, status: str, step: int) -> None:
        assert self.folder is not None
        steps = self.recipe.train.steps
        self.folder.write_status(status, step, steps, self._seconds_before, self.best)

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.metrics.write(row)
            self.trackers.log(row["step"], row)
        self.checkpoints.check()

    def write_checkpoint(self, trainer: Trainer, state: State, best: bool) -> None:
        for lines in (self.metrics, self.evals):
            lines.sync()
        state.meta["recorder"] = {
            "metrics": self.metrics.length,
            "evals": self.evals.length,
            "trackers": self.trackers.ids,
            "seconds": self._seconds_before + time.time() - self._started,
            "best": self.best,
        }
        about = self.best if best else None
        self.checkpoints.save(trainer.step, state, trainer.write_lora, about)

    def best_checkpoint(self) -> Path:
        """On disk by now, unless something is wrong with it: then the newest whole one."""
        self.checkpoints.wait()
        return best_complete(self.path / "checkpoints")[0]

    # -- the end ----------------------------------------------------------------------------

    def fail(self, step: int) -> None:
        """Marks the run as failed, where that can still be written."""
        if self.folder is not None and hasattr(self, "metrics") and self.path.is_dir():
            with suppress(OSError):
                self.write_status("failed", step)

    def fail_alone(self) -> None:
        """The same where the main process may be gone: its lock is free then."""
        if self.folder is None:
            with suppress(OSError, ValueError, MarbleError):
                mark_failed(self.path)

    @property
    def last_good(self) -> str:
        """Words on where the run can be resumed from."""
        try:
            if hasattr(self, "checkpoints"):
                with suppress(MarbleError):
                    self.checkpoints.wait()
            return f"the last good checkpoint is {newest_complete(self.path / 'checkpoints')[0]}"
        except CheckpointError:
            return "there is no checkpoint yet"

    def cannot_write(self, error: OSError) -> MarbleError:
        """What to tell of a disk that is full, gone or not ours."""
        return MarbleError(
            f"{self.path}: cannot write there ({error.strerror}); {self.last_good}. Go on with "
            f"`marble train --resume {self.path}` when it can be written again"
        )

    def close(self) -> None:
        if self.folder is None:
            return
        for part in ("checkpoints", "metrics", "evals", "trackers"):
            if hasattr(self, part):
                # After a failure only the failure is worth telling.
                with suppress(OSError, MarbleError):
                    getattr(self, part).close()
        self.folder.close()
