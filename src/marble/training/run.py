"""A whole run: from a recipe to a folder with the trained LoRA, its measurements and its report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from marble.errors import MarbleError
from marble.recipe import Recipe
from marble.training import setup
from marble.training.checkpoint import load_state, newest_complete
from marble.training.display import Display
from marble.training.loop import Trainer
from marble.training.processes import Processes
from marble.training.recorder import Recorder
from marble.training.stop import StopRequest


@dataclass(frozen=True)
class Outcome:
    folder: Path
    step: int
    finished: bool
    reason: str | None = None
    """Why the run ended early, when it did."""


def train(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    console: Console | None = None,
) -> Outcome:
    """Trains as `recipe` says, into `out`; with `resume`, on from its newest whole checkpoint."""
    processes = Processes(device)
    console = console or Console(stderr=True, quiet=not processes.is_main)
    try:
        return _train(recipe, out, resume, processes, console)
    finally:
        processes.close()


def _train(
    recipe: Recipe, out: Path, resume: bool, processes: Processes, console: Console
) -> Outcome:
    checkpoint = None
    if resume:
        checkpoint, notes = newest_complete(out / "checkpoints")
        for note in notes:
            console.print(f"[yellow]passed over[/] {note}", highlight=False)
    recorder = Recorder(recipe, out, processes, resuming=resume)
    try:
        with console.status(f"loading {recipe.model.path} and {len(recipe.rewards.train)} rewards"):
            trainer = Trainer(recipe, setup.build(recipe, processes.device), processes)
        if checkpoint is not None:
            state = load_state(checkpoint)
            trainer.load(state)
            recorder.resume(state.meta["recorder"])
            console.print(f"resuming after step {trainer.step} from {checkpoint}", highlight=False)
        return _loop(recipe, trainer, recorder, processes, console)
    except MarbleError:
        recorder.fail()
        raise
    finally:
        recorder.close()


def _loop(
    recipe: Recipe, trainer: Trainer, recorder: Recorder, processes: Processes, console: Console
) -> Outcome:
    display = Display(recipe.rewards.names, recipe.train.steps, trainer.step, console)
    with StopRequest(recipe.train.max_hours) as stop, display:
        if recorder.fresh:
            recorder.begin(trainer, display.say)
        while not trainer.finished:
            started = time.perf_counter()
            rows = trainer.run_epoch()
            for row in rows:
                recorder.step(trainer, row)
                display.show(row)
            if trainer.guard.message:
                display.say(f"step {trainer.step} skipped: {trainer.guard.message}")
            for warning in trainer.parts.rewards.warnings():
                display.say(f"step {trainer.step}: {warning}")
            stopping = processes.any(bool(stop))
            recorder.epoch(trainer, len(rows), stopping, time.perf_counter() - started, display.say)
            if stopping:
                break
    trainer.close()
    reason = None if trainer.finished else stop.reason or "another process was asked to stop"
    recorder.end(trainer, reason, console)
    return Outcome(recorder.path, trainer.step, trainer.finished, reason)
