"""Whether this machine can run a recipe: packages, weights, prompts, rewards, memory, disk.

Nothing is loaded, nothing is downloaded, and no code that a recipe names is run.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marble.duration import GPU, GPUS, SMALL, estimate_time, find_gpu
from marble.errors import MarbleError
from marble.recipe import Recipe, load_recipe
from marble.recipe.trust import OURS
from marble.rewards.presence import Absent

PACKAGES = ("torch", "diffusers", "peft", "accelerate", "transformers", "safetensors")


@dataclass(frozen=True)
class Check:
    what: str
    ok: bool
    found: str
    remedy: str = ""
    fetch: tuple[str, ...] = ()
    """Commands that download what is missing."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def examine(
    name: str, overrides: list[str] | None = None, gpu: GPU | None = None, count: int = 1
) -> list[Check]:
    """Every check of a recipe, in the order in which a run would need them.

    With `gpu`, memory and time are those of `count` such cards instead of this machine's.
    """
    return list(checks_of(load_recipe(name, overrides or []), gpu, count))


def checks_of(recipe: Recipe, gpu: GPU | None = None, count: int = 1) -> Iterator[Check]:
    yield _packages()
    yield from _trackers(recipe)
    yield _model(recipe)
    for name, source in recipe.data.sources.items():
        yield _prompts(recipe, name, source.path, source.eval_path)
    for entry in (*recipe.rewards.train, *recipe.rewards.heldout):
        held_out = entry in recipe.rewards.heldout
        yield _reward(entry.name, entry.reward, entry.options, held_out=held_out)
    yield (
        _device(recipe) if gpu is None else Check("device", True, f"{count} × {gpu.name}, as named")
    )
    if recipe.rollout.fp8:
        yield _fp8(gpu)
    yield _memory(recipe, gpu)
    yield _time(recipe, gpu, count)
    yield _disk(recipe)


def _attempt(what: str, look: Callable[[], str], remedy: str = "") -> Check:
    try:
        return Check(what, True, look())
    except Absent as absent:
        problem = str(absent).partition("; ")[0]
        remedy = "see Downloads below, or let the run fetch it when it starts"
        return Check(what, False, problem, remedy, tuple(absent.commands))
    except MarbleError as error:
        problem, _, advice = str(error).partition("; ")
        return Check(what, False, problem, advice or remedy)


def _packages() -> Check:
    versions, absent = [f"python {platform.python_version()}"], []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(package)
    if absent:
        return Check("packages", False, f"{', '.join(absent)} absent", "pip install marble-rl")
    return Check("packages", True, ", ".join(versions))


def _trackers(recipe: Recipe) -> Iterator[Check]:
    for name in recipe.log.trackers:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            remedy = f'pip install "marble-rl[trackers]", or take {name} out of log.trackers'
            yield Check(f"tracker {name}", False, "absent", remedy)


def _model(recipe: Recipe) -> Check:
    import marble.models
    from marble.models.fetch import fetch_command, how_to_fetch
    from marble.models.folder import NotHere, find_local

    model = recipe.model
    path, revision = model.path, model.revision
    try:
        folder, family = marble.models.check(
            str(find_local(path, revision)), family=model.family, options=model.options
        )
    except NotHere as error:
        remedy = how_to_fetch(path, revision)
        return Check("model", False, str(error), remedy, (fetch_command(path, revision),))
    except MarbleError as error:
        problem, _, remedy = str(error).partition("; ")
        return Check("model", False, problem, remedy or "give model.path another folder or hub id")
    return Check("model", True, f"{family.pipeline} in {folder}")


def _prompts(recipe: Recipe, name: str, path: str, eval_path: str | None) -> Check:
    from marble.data import load_prompts
    from marble.prompts import GENERAL, KINDS

    data = recipe.data

    def look() -> str:
        trained = load_prompts(path, data.train_split, source=name)
        held_out = load_prompts(eval_path or path, data.eval_split, source=name)
        return f"{len(trained)} {data.train_split}, {len(held_out)} {data.eval_split} in {path}"

    elsewhere = f"set data.sources.{name}.path=FOLDER (docs/sd35.md)"
    remedy = f"put there {GENERAL}; or {elsewhere}"
    if name in KINDS:
        remedy = f"`marble prompts {name} --out {path}` makes some; or {elsewhere}"
    return _attempt(f"prompts {name}", look, remedy)


def _reward(name: str, reward: str, options: dict[str, Any], *, held_out: bool) -> Check:
    from marble.rewards import check
    from marble.rewards.locate import locate

    def look() -> str:
        if ":" not in reward or reward.startswith(OURS):
            return check(reward, **options)
        locate(reward)
        return f"your {reward} is there (nothing of it was run)"

    what = f"reward {name}" + (" (held out)" if held_out else "")
    remedy = f"mend {reward.rpartition(':')[0]}" if ":" in reward else f"set rewards.{name}.options"
    return _attempt(what, look, remedy)


def _device(recipe: Recipe) -> Check:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Check("device", True, f"{len(names)} × {names[0]}, CUDA {torch.version.cuda}")
    count = _parameters(recipe)
    found = f"CPU with {os.cpu_count()} cores, no CUDA device"
    if count is None or count <= SMALL:
        return Check("device", True, found)
    remedy = f"a model of {count / 1e9:.1f} billion parameters trains on a GPU only"
    return Check("device", False, found, remedy)


def _fp8(gpu: GPU | None) -> Check:
    import torch

    from marble.models.fp8 import check, refusal

    def look() -> str:
        if gpu is None:
            check(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        elif not gpu.fp8:
            raise refusal(f"this is an {gpu.name}")
        return "the GPU multiplies it"

    return _attempt("fp8", look)


def _parameters(recipe: Recipe) -> int | None:
    """Of the transformer; None for a model that is not here and that no family knows."""
    from marble.memory import model_facts

    try:
        return model_facts(recipe).parts["transformer"]
    except MarbleError:
        return None


UNKNOWN = "not known before the model's files are here"


def _memory(recipe: Recipe, gpu: GPU | None = None) -> Check:
    import torch

    from marble.memory import estimate, sized
    from marble.training.memory import savings

    count = _parameters(recipe)
    if count is None:
        return Check("memory", True, UNKNOWN)
    have: float | None = None
    if gpu is not None:
        have = gpu.memory_gb
        there = f"{have:.0f} GB on each {gpu.name}"
    elif torch.cuda.is_available():
        have = torch.cuda.get_device_properties(0).total_memory / 1e9
        there = f"{have:.0f} GB on each GPU"
    elif count <= SMALL:
        have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        there = f"{have:.0f} GB of main memory"
    else:  # it will run elsewhere: the figure is for choosing that machine
        there = "no GPU here to compare with"
    recipe = sized(recipe, have)
    need = estimate(recipe)
    parts = sorted(need.held, key=lambda part: -need.held[part])
    large = [f"{part} {need.held[part]:.1f}" for part in parts if need.held[part] >= 0.5]
    held = f" (held all along: {', '.join(large)})" if len(large) > 1 else ""
    found = f"about {need.peak:.1f} GB wanted{held}, most while {need.peak_phase}; {there}"
    remedy = "to lower it, cheapest first: " + "; ".join(savings(recipe))
    return Check("memory", have is None or need.peak < have, found, remedy)


def _time(recipe: Recipe, gpu: GPU | None, count: int) -> Check:
    """Hours per step and in all. Never a reason not to be ready."""
    import torch

    from marble.training.display import lasting

    what, parameters = "time", _parameters(recipe)
    if parameters is None:
        return Check(what, True, UNKNOWN)
    if gpu is None and torch.cuda.is_available():
        name, count = torch.cuda.get_device_name(0), torch.cuda.device_count()
        gpu = find_gpu(name)
        if gpu is None:
            return Check(what, True, f"{name} is not known here: the run says it after three steps")
    elif gpu is None:
        count = os.cpu_count() or 1
        if parameters > SMALL:
            known = ", ".join(GPUS)
            return Check(what, True, f"no GPU here; --gpu NAME [--gpus N] estimates it ({known})")
    found = estimate_time(recipe, gpu, count)
    parts = ", ".join(f"{part} {lasting(s)}" for part, s in found.parts.items() if s >= 0.05)
    where = f"{count} × {gpu.name}" if gpu else f"{count} CPU cores"
    text = (
        f"about {lasting(found.step)} per step ({parts}), {lasting(found.total)} in all on {where}"
    )
    if found.unknown:
        text += f"; without {', '.join(found.unknown)}, never timed"
    return Check(what, True, text)


def _disk(recipe: Recipe) -> Check:
    from marble.memory import disk_gb

    if _parameters(recipe) is None:
        return Check("disk", True, UNKNOWN)
    need, free = disk_gb(recipe), shutil.disk_usage(Path.cwd()).free / 1e9
    found = f"about {need:.1f} GB for the run, {free:.0f} GB free here"
    return Check("disk", free > need, found, "free some, or choose another disk with --out")
