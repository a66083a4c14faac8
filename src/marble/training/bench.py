"""How fast a training run is, and where its time goes; every ratio is within one process."""

from __future__ import annotations

import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from marble.balance import Plan
from marble.models import lora
from marble.recipe import Recipe, load_recipe
from marble.training import setup
from marble.training.loop import Trainer
from marble.training.processes import Processes

# A small epoch of the recipe: the shares of rollout and training are those of a full one.
SMALL = ["data.prompts_per_epoch=3", "data.images_per_prompt=8", "train.steps=1000000"]
VARIANTS = {
    "weighted_sum": ["balance.method=weighted_sum", "log.harmony_every=0"],
    "marble N=10": ["balance.method=marble", "balance.every=10"],
    "marble N=1": ["balance.method=marble", "balance.every=1"],
}


def bench_train(
    recipe: str = "studio",
    overrides: Sequence[str] = (),
    *,
    rounds: int = 9,
    device: str | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Images per second of MARBLE, beside the plain weighted sum that measures nothing.

    One trainer a variant; in each round every one of them takes one epoch, in turn, and the next
    round begins with another. A ratio is the median over rounds of the weighted sum's time by the
    variant's in the same round, which other load on the machine disturbs least; on a CPU the same
    of processor time is given too, which other load hardly disturbs at all. N = 10 takes one
    refresh step in ten: its ratio is put together from both kinds, `(refresh + 9·ordinary)/10`.
    """
    processes = Processes(device)
    trainers = {
        name: _trainer(load_recipe(recipe, [*SMALL, *overrides, *own], trust=trust), processes)
        for name, own in VARIANTS.items()
    }
    # Epoch 0 warms up. Every tenth is a refresh of N = 10, whose ordinary ones are measured here.
    timed = [_round(trainers, first) for first in range(1 + rounds)]
    measured = [times for i, times in enumerate(timed) if i % 10]
    images = trainers["weighted_sum"].recipe.samples_per_epoch
    speed = images / statistics.median(times["weighted_sum"].wall for times in measured)
    ratios = _ratios(measured, "wall")
    more = {} if processes.device.type == "cuda" else {"ratio_cpu_time": _ratios(measured, "cpu")}
    for trainer in trainers.values():
        trainer.close()
    return {
        "images_per_s": {"weighted_sum": speed} | {n: speed * r for n, r in ratios.items()},
        "ratio": ratios,
        **more,
        "target": {"marble N=10": 0.97, "marble N=1": 0.75},
        "profile": profile(
            load_recipe(recipe, [*SMALL, *overrides, *VARIANTS["marble N=10"]], trust=trust),
            processes,
        ),
        "setup": {
            "recipe": recipe,
            "images_per_epoch": images,
            "rounds": len(measured),
            "rewards": trainers["weighted_sum"].recipe.rewards.names,
        },
        "device": _device_name(processes.device),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


class Times(NamedTuple):
    wall: float
    cpu: float
    """Processor seconds of all threads."""


def _round(trainers: Mapping[str, Trainer], first: int) -> dict[str, Times]:
    names = list(trainers)
    turn = first % len(names)
    return {name: _epoch(trainers[name]) for name in names[turn:] + names[:turn]}


def _ratios(measured: Sequence[Mapping[str, Times]], clock: str) -> dict[str, float]:
    def slowdown(name: str) -> float:
        return statistics.median(
            getattr(times[name], clock) / getattr(times["weighted_sum"], clock)
            for times in measured
        )

    refresh, ordinary = slowdown("marble N=1"), slowdown("marble N=10")
    return {"marble N=10": 10 / (refresh + 9 * ordinary), "marble N=1": 1 / refresh}


def profile(recipe: Recipe, processes: Processes) -> dict[str, dict[str, float]]:
    """Seconds by phase of an ordinary and of a refresh epoch; rewards are not overlapped here."""
    changes = {"train": recipe.train.model_copy(update={"overlap_rewards": False})}
    trainer = _trainer(recipe.model_copy(update=changes), processes)
    every = recipe.balance.every
    trainer.run_epoch()
    trainer.step = 1
    result = {}
    for kind, step in (("ordinary", 1), ("refresh", every)):  # N = 1 has only refreshes
        trainer.step = step
        with _watched(trainer) as seconds:
            whole = _epoch(trainer).wall
        for name, outcome in trainer.parts.rewards.outcomes.items():
            seconds[f"reward {name}"] = outcome.seconds
        seconds["other"] = whole - sum(seconds.values())
        result[kind] = {**seconds, "whole": whole}
    trainer.close()
    return result


@contextmanager
def _watched(trainer: Trainer) -> Iterator[dict[str, float]]:
    """Adds up the time of the model's and the balance's calls."""
    seconds: dict[str, float] = defaultdict(float)
    adapter, backward = trainer.adapter, Plan.backward
    names = {"old": "old forward", "base": "reference forward", "default": "train forward"}

    def forward() -> str:
        if sampling:
            return "rollout"
        return names[lora.active(adapter.transformer)]

    sampling: list[bool] = []

    def sample(*args: Any, **options: Any) -> Any:
        sampling.append(True)
        try:
            return honest_sample(*args, **options)
        finally:
            sampling.pop()

    honest_sample = adapter.sample
    watched = {
        "velocity": _timed(adapter.velocity, forward, seconds, adapter.device),
        "replayed": _timed(adapter.replayed, forward, seconds, adapter.device),
        "decode": _timed(adapter.decode, lambda: "decode", seconds, adapter.device),
        "encode": _timed(adapter.encode, lambda: "prompts", seconds, adapter.device),
        "sample": sample,
    }
    for name, function in watched.items():
        setattr(adapter, name, function)
    Plan.backward = _timed(backward, lambda: "backward", seconds, adapter.device)  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Plan.backward = backward  # type: ignore[method-assign]
        for name in watched:
            delattr(adapter, name)


_running: list[str] = []


def _timed(
    function: Callable[..., Any],
    phase: Callable[[], str],
    seconds: dict[str, float],
    device: torch.device,
) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if _running:  # a pass within a pass: its time is in the outer one's
            return function(*args, **options)
        key = phase()
        _synchronise(device)
        started = time.perf_counter()
        _running.append(key)
        try:
            result = function(*args, **options)
        finally:
            _running.pop()
        _synchronise(device)
        seconds[key] += time.perf_counter() - started
        return result

    return call


def _trainer(recipe: Recipe, processes: Processes) -> Trainer:
    return Trainer(recipe, setup.build(recipe, processes.device), processes)


def _epoch(trainer: Trainer) -> Times:
    _synchronise(trainer.adapter.device)
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.run_epoch()
    _synchronise(trainer.adapter.device)
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
