"""Whether this machine can run a recipe: packages, weights, prompts, rewards, memory, disk."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marble.errors import MarbleError
from marble.recipe import Recipe, load_recipe

PACKAGES = ("torch", "diffusers", "peft", "accelerate", "transformers", "safetensors")
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Check:
    what: str
    ok: bool
    found: str
    remedy: str = ""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def examine(name: str, overrides: list[str] | None = None) -> list[Check]:
    """Every check of a recipe, none of which loads a model."""
    recipe = load_recipe(name, overrides or [])
    return list(_checks(recipe))


def _checks(recipe: Recipe) -> Iterator[Check]:
    for package in PACKAGES:
        found = importlib.util.find_spec(package) is not None
        yield Check(
            f"package {package}", found, "installed" if found else "absent", "pip install marble-rl"
        )
    yield _model(recipe)
    for name, source in recipe.data.sources.items():
        yield _attempt(f"prompts {name}", lambda s=source, n=name: _prompts(recipe, s.path, n))
    for entry in (*recipe.rewards.train, *recipe.rewards.heldout):
        yield _attempt(f"reward {entry.name}", lambda e=entry: _reward(e.reward, e.options))
    yield _memory(recipe)
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    need = 2.0 if recipe.model.path == "studio" else 20.0
    yield Check(
        "disk", free > need, f"{free:.0f} GB free, {need:.0f} GB wanted", "choose another --out"
    )


def _attempt(what: str, look: Callable[[], str]) -> Check:
    try:
        return Check(what, True, look())
    except MarbleError as error:
        return Check(what, False, str(error))


def _prompts(recipe: Recipe, path: str, name: str) -> str:
    from marble.data import load_prompts

    counts = [
        f"{len(load_prompts(path, split, source=name))} {split}"
        for split in (recipe.data.train_split, recipe.data.eval_split)
    ]
    return ", ".join(counts)


def _reward(reward: str, options: dict[str, Any]) -> str:
    from marble.rewards import check

    return check(reward, **options)


def _model(recipe: Recipe) -> Check:
    import marble.models

    try:
        folder, family = marble.models.check(recipe.model.path, recipe.model.revision)
    except MarbleError as error:
        return Check("model", False, str(error))
    return Check("model", True, f"{family} in {folder}")


def _memory(recipe: Recipe) -> Check:
    """Weights, LoRA states and accumulators are counted; activations are a rule of thumb."""
    import torch

    from marble.memory import estimate_gb

    need = estimate_gb(recipe)
    if torch.cuda.is_available():
        have, where = (
            torch.cuda.get_device_properties(0).total_memory / 1e9,
            torch.cuda.get_device_name(0),
        )
    else:
        import os

        have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        where = "CPU"
    remedy = (
        "in order of cost: model.gradient_checkpointing=true, smaller train.batch_size and "
        "rollout.batch_size, model.dtype=bf16, balance.heldout_half=false, smaller model.lora.rank"
    )
    return Check(
        "memory", need < have, f"about {need:.1f} GB wanted, {have:.0f} GB on {where}", remedy
    )
