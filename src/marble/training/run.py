"""A whole run: from a recipe to a folder with the trained LoRA, its measurements and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from marble.errors import MarbleError
from marble.recipe import Recipe
from marble.recipe.notes import notes
from marble.training import fsdp, setup
from marble.training.checkpoint import load_state
from marble.training.display import Display
from marble.training.folder import DISK_ERRORS
from marble.training.guard import Diverged
from marble.training.loop import Trainer
from marble.training.memory import is_out_of_memory, out_of_memory
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
    check: Callable[[Recipe], None] = setup.check,
    build: Callable[[Recipe, torch.device, int], setup.Parts] = setup.build,
) -> Outcome:
    """Trains as `recipe` says, into `out`; with `resume`, on from its newest whole checkpoint.

    `check` and `build` may come from elsewhere, for a model or prompts that no recipe can name.
    """
    processes = Processes(device)
    console = console or Console(stderr=True, quiet=not processes.is_main)
    try:
        return _train(recipe, out, resume, processes, console, check, build)
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(recipe, processes.size) from error
        raise
    finally:
        processes.close()


def _train(
    recipe: Recipe,
    out: Path,
    resume: bool,
    processes: Processes,
    console: Console,
    check: Callable[[Recipe], None],
    build: Callable[[Recipe, torch.device, int], setup.Parts],
) -> Outcome:
    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    processes.together(lambda: check(recipe))  # before there is a folder
    fsdp.check(recipe, processes.size)
    recorder = Recorder(recipe, out, processes, resuming=resume)
    trainer: Trainer | None = None
    try:
        checkpoint = recorder.find_checkpoint(say) if resume else None
        with console.status(f"loading {recipe.model.path} and {len(recipe.rewards.train)} rewards"):
            parts = processes.together(lambda: build(recipe, processes.device, processes.size))
            trainer = Trainer(recipe, parts, processes)
        if checkpoint is not None:
            state = load_state(checkpoint)
            # Trackers may draw random numbers as they open; the trainer's state comes after.
            recorder.resume(state.meta["step"], state.meta["recorder"])
            for note in trainer.load(state):
                say(note)
            say(f"resuming after step {trainer.step} from {checkpoint}")
        else:
            recorder.fresh = True
        return _loop(recipe, trainer, recorder, processes, console)
    except Exception as error:
        recorder.fail(trainer.step if trainer else 0)
        if isinstance(error, Diverged):
            raise MarbleError(f"{error}; {recorder.last_good}") from error
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise recorder.cannot_write(error) from error
        raise
    finally:
        if trainer is not None:
            trainer.close()
        recorder.close()


def _loop(
    recipe: Recipe, trainer: Trainer, recorder: Recorder, processes: Processes, console: Console
) -> Outcome:
    display = Display(recipe.rewards.names, recipe.train.steps, trainer.step, console)
    collapsed: str | None = None
    with StopRequest(recipe.train.max_hours) as stop, display:
        for note in notes(recipe):
            display.say(note)
        if recorder.fresh:
            recorder.begin(trainer, display)
        display.begin()
        while not trainer.finished:
            rows = trainer.run_epoch()
            for row in rows:
                display.show(row)
            for warning in trainer.warnings:
                display.say(f"step {trainer.step}: {warning}")
            stopping = processes.any(bool(stop))
            collapsed = recorder.epoch(trainer, rows, stopping, display)
            display.gained(rows[-1])
            if stopping or collapsed:
                break
        if collapsed or trainer.finished:
            recorder.evaluate_best(trainer, display)
    reason = collapsed
    if reason is None and not trainer.finished:
        reason = stop.reason or "another process was asked to stop"
    recorder.end(trainer, reason, console)
    return Outcome(recorder.path, trainer.step, trainer.finished, reason)
