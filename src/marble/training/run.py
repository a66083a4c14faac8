"""A whole run: from a recipe to a folder with the trained LoRA, its measurements and its report."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from marble.errors import LostProcess, MarbleError
from marble.memory import batches, of_size
from marble.recipe import Recipe
from marble.recipe.notes import notes
from marble.recipe.trust import remember
from marble.training import fsdp, random_state, setup
from marble.training.checkpoint import State, load_state
from marble.training.display import Display, redraws
from marble.training.folder import DISK_ERRORS
from marble.training.guard import Diverged
from marble.training.loop import Trainer
from marble.training.memory import fitted, is_out_of_memory, out_of_memory
from marble.training.processes import Processes, is_lost
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
    # The same numbers for all processes, and for whoever resumes: the run's folder has them.
    given, place = recipe, (processes.device, processes.size)
    if recipe.train.batch_size is None or recipe.rollout.batch_size is None:
        batch, drawn = processes.from_main(lambda: batches(fitted(given, *place)))
        recipe = of_size(given, batch, drawn=drawn)
    resume = processes.from_main(lambda: resume or _restarted(recipe, out))
    console = console or Console(stderr=True, quiet=not processes.is_main)
    _tell_batches(given, recipe, console)
    try:
        return _train(recipe, out, resume, processes, console, check, build)
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(recipe, processes.size) from error
        raise
    finally:
        processes.close()


def _tell_batches(given: Recipe, fitted: Recipe, console: Console) -> None:
    """What was left to the memory of the device, and came to."""
    chosen = []
    if given.rollout.batch_size is None:
        chosen.append(f"rollout.batch_size: {fitted.rollout.batch_size} pictures drawn at once")
    if given.train.batch_size is None:
        chosen.append(f"train.batch_size: {fitted.train.batch_size} samples per micro-batch")
    for text in chosen:
        console.print(f"{text}, by the memory of the device", highlight=False)


def _restarted(recipe: Recipe, out: Path) -> bool:
    """Whether a launcher that restarts its processes has started this very run before.

    It gives every start the same words; those of the first one would be refused by the second.
    """
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return False
    try:
        return (out / "config.yaml").read_text(encoding="utf-8") == recipe.dump()
    except (OSError, ValueError):
        return False


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
    if processes.is_main:
        remember(recipe)  # what this account trains with, it need not be asked about again
    recorder = Recorder(recipe, out, processes, resuming=resume)
    trainer: Trainer | None = None
    try:
        checkpoint = recorder.find_checkpoint(say) if resume else None
        state = processes.together(lambda: load_state(checkpoint)) if checkpoint else None
        loading = f"loading {recipe.model.path} and {len(recipe.rewards.train)} rewards"
        with console.status(loading) if redraws(console) else nullcontext():
            parts = processes.together(lambda: build(recipe, processes.device, processes.size))
            trainer = Trainer(recipe, parts, processes)
        parts.adapter.say = say
        if recipe.train.precision == "auto" and parts.adapter.precision is torch.bfloat16:
            say(
                "computing in bf16, which this CPU has instructions for; train.precision=fp32 "
                "takes full precision"
            )
        if parts.adapter.tf32:
            say("multiplying in TF32; train.precision=fp32 takes full precision")
        if resume:
            _go_on(trainer, state, recorder, say)
            if trainer.finished:
                say(
                    f"all {recipe.train.steps} steps are done, nothing is trained; go on with "
                    f"`marble train --resume {out} train.steps={2 * trainer.step}`"
                )
            elif checkpoint is not None:
                say(f"resuming after step {trainer.step} from {checkpoint}")
        return _loop(recipe, trainer, recorder, processes, console)
    except BaseException as error:  # whatever ends the run: its folder must not say "running"
        recorder.files.fail(trainer.step if trainer else 0)
        if processes.size > 1 and is_lost(error):
            recorder.files.fail_alone()
            raise LostProcess(
                "another process of the run is gone (killed, or its machine was lost); "
                f"{recorder.files.last_good}. Go on with `marble train --resume {out}`; under "
                "`torchrun --max-restarts` the launcher does so itself"
            ) from error
        if isinstance(error, Diverged):
            raise MarbleError(f"{error}; {recorder.files.last_good}") from error
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise recorder.files.cannot_write(error) from error
        raise
    finally:
        if trainer is not None:
            trainer.close()
        recorder.files.close()


def _go_on(
    trainer: Trainer, state: State | None, recorder: Recorder, say: Callable[[str], None]
) -> None:
    """Takes trainer and folder back to a checkpoint, or to the start where there is none yet.

    The trainer first: a state that does not fit is refused before a file of the run changes.
    """
    if state is None:
        recorder.fresh = True
        recorder.resume(0, {}, say)
        return
    notes = trainer.processes.together(lambda: trainer.load(state))
    drawn = random_state.capture()  # trackers may draw random numbers as they open
    recorder.resume(state.meta["step"], state.meta["recorder"], say)
    random_state.restore(drawn)
    for note in notes:
        say(note)


def _loop(
    recipe: Recipe, trainer: Trainer, recorder: Recorder, processes: Processes, console: Console
) -> Outcome:
    display = Display(recipe.rewards.names, recipe.train.steps, trainer.step, console)
    trainer.adapter.say = display.say
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
            recorder.front(trainer, display)
    reason = collapsed
    if reason is None and not trainer.finished:
        reason = stop.reason or "another process was asked to stop"
    recorder.end(trainer, reason, console)
    return Outcome(recorder.path, trainer.step, trainer.finished, reason)
