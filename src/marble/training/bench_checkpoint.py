"""What exact resume costs: the time of a save against the time of the steps between two of them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from marble.recipe import load_recipe
from marble.training import setup
from marble.training.checkpoint import CheckpointWriter
from marble.training.loop import Trainer
from marble.training.processes import Processes


def bench_checkpoint(
    recipe: str = "studio",
    overrides: Sequence[str] = (),
    *,
    every: int = 10,
    rounds: int = 5,
    folder: str | None = None,
    device: str | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Epochs of a real run and saves of its whole state, in turn, in one process.

    `added` is the part that a save every `every` steps would add if nothing of it overlapped with
    training: `save / (every · step)`, by medians. A run waits only for `blocked_s` of it (the
    snapshot and the LoRA file); hashing and writing to disk go on in the background. `folder`:
    where to write (and delete again), to measure a particular disk.
    """
    processes = Processes(device)
    chosen = load_recipe(recipe, ["train.steps=1000000", *overrides], trust=trust)
    setup.check(chosen)
    trainer = Trainer(chosen, setup.build(chosen, processes.device, processes.size), processes)
    steps, saves, blocked = [], [], []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        writer = CheckpointWriter(Path(place), keep=2)
        for round in range(1 + rounds):
            started = time.perf_counter()
            count = len(trainer.run_epoch())
            _finish(processes.device)
            stepped = time.perf_counter()
            writer.save(trainer.step, trainer.state(), trainer.write_lora)
            released = time.perf_counter()
            writer.wait()
            done = time.perf_counter()
            if round:  # the first one warms up
                steps.append((stepped - started) / count)
                blocked.append(released - stepped)
                saves.append(done - stepped)
        size = sum(p.stat().st_size for p in Path(place).glob("step-*/**/*") if p.is_file())
        kept = len(list(Path(place).glob("step-*")))
        writer.close()
    trainer.close()
    step, save, wait = (statistics.median(values) for values in (steps, saves, blocked))
    return {
        "added": save / (every * step),
        "added_blocked": wait / (every * step),
        "target": 0.03,
        "step_s": step,
        "save_s": save,
        "blocked_s": wait,
        "checkpoint_mb": size / kept / 1e6,
        "setup": {"recipe": recipe, "every": every, "rounds": rounds},
        "threads": torch.get_num_threads(),
    }


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
