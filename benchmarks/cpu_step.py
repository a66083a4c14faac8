"""A training step of the studio on a CPU: fp32, bf16 by autocast alone, and bf16 as it ships.

    python benchmarks/cpu_step.py --out FILE.json            # minutes
    OMP_NUM_THREADS=1 python benchmarks/cpu_step.py …        # on a machine that others use too

In each round every variant takes one ordinary epoch, in turn, so that other load hits all alike.
Ratios are medians over rounds of the same round's times. `cpu` is processor time of all threads,
which other load changes least, above all with one thread: several wait for each other spinning.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch

from marble.models import base, cpu
from marble.models.precision import fast_bf16_on_cpu
from marble.recipe import load_recipe
from marble.training import setup
from marble.training.loop import Trainer
from marble.training.processes import Processes

VARIANTS = {"fp32": "fp32", "autocast": "bf16", "bf16": "bf16"}
PHASES = ("rollout", "reward", "train")


@contextmanager
def autocast_alone() -> Iterator[None]:
    """bf16 without anything of `marble.models.cpu`."""
    with (
        mock.patch.object(cpu, "make_fast", lambda model: None),
        mock.patch.object(base, "keep_low", lambda *given: None),
        mock.patch.object(base.Adapter, "low_on_cpu", False),
    ):
        yield


def build(name: str, recipe: str, overrides: list[str], processes: Processes) -> Trainer:
    words = [f"train.precision={VARIANTS[name]}", "train.steps=1000000", "train.probe=0"]
    found = load_recipe(recipe, [*words, *overrides])
    trainer = Trainer(found, setup.build(found, processes.device), processes)
    trainer.adapter.say = lambda line: None
    return trainer


def epoch(trainer: Trainer) -> dict[str, float]:
    """Seconds of an ordinary epoch: in all, of processors, and by phase."""
    trainer.step = 1  # not a refresh
    wall, processor = time.perf_counter(), time.process_time()
    row = trainer.run_epoch()[-1]
    spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - processor}
    return spent | {phase: float(row[f"time/{phase}"]) for phase in PHASES}


def measure(recipe: str, overrides: list[str], rounds: int) -> dict[str, Any]:
    processes = Processes("cpu")
    trainers = {}
    for name in VARIANTS:
        if name == "autocast":
            with autocast_alone():
                trainers[name] = build(name, recipe, overrides, processes)
        else:
            trainers[name] = build(name, recipe, overrides, processes)
    timed: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for number in range(1 + rounds):
        for name, trainer in trainers.items():
            if name == "autocast":
                with autocast_alone():
                    found = epoch(trainer)
            else:
                found = epoch(trainer)
            if number:  # the first warms up
                timed[name].append(found)

    def ratio(over: str, clock: str) -> float:
        pairs = zip(timed[over], timed["bf16"])
        return statistics.median(slow[clock] / fast[clock] for slow, fast in pairs)

    pictures = trainers["bf16"].recipe.samples_per_epoch
    for trainer in trainers.values():
        trainer.close()
    processes.close()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": {
            name: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for name, found in timed.items()
        },
        "times_as_fast": {
            f"than {over}": {clock: ratio(over, clock) for clock in ("wall", "cpu")}
            for over in ("fp32", "autocast")
        },
        "setup": {"recipe": recipe, "pictures": pictures, "rounds": rounds},
        "bf16_instructions": fast_bf16_on_cpu(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="studio")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="changes to the recipe")
    args = parser.parse_args(words)
    result = measure(args.recipe, args.overrides, args.rounds)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
