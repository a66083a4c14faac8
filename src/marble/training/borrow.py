"""An evaluation of the untouched model, taken over from another run that measured the same."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from marble.errors import MarbleError
from marble.evaluation.reading import parse_json
from marble.plugins import guarded
from marble.recipe import Recipe
from marble.recipe.load import recipe_from
from marble.recipe.trust import refuse_all
from marble.recipe.yamlio import read
from marble.training.checkpoint import step_name

FOLDER = f"evals/{step_name(0)}"


def has_base(run: Path) -> bool:
    """Whether a run has evaluated the base, to the end: the index is written last."""
    return (run / FOLDER / "index.json").is_file()


def take_base(recipe: Recipe, device: str, source: Path, into: Path) -> dict[str, Any] | str:
    """Links the base's evaluation into another run's folder; its record, or why it is not the same.

    The same model, prompts, seeds, sampling, rewards and device give the same pictures and scores.
    """
    try:
        theirs = read(source / "config.yaml")
        on = json.loads((source / "environment.json").read_text())["device"]
        lines = (source / "evals.jsonl").read_text().splitlines()
        record: dict[str, Any] = dict(parse_json(lines[0]))
        with guarded(refuse_all(source)):
            known = recipe_from(theirs)
    except (OSError, ValueError, TypeError, KeyError, IndexError, MarbleError) as error:
        return f"{source}: no evaluation to take over ({error})"
    if not has_base(source) or record.get("policy") != "base":
        return f"{source}: has not evaluated its base"
    ours, theirs = _drawn(recipe), _drawn(known)
    other = [key for key in ours if ours[key] != theirs[key]]
    if on != device:
        other.append("device")
    if other:
        return f"{source}: its base was evaluated with another {other[0]}"
    shutil.copytree(source / FOLDER, into / FOLDER, copy_function=_link, dirs_exist_ok=True)
    return record


def _drawn(recipe: Recipe) -> dict[str, Any]:
    """All that the scores of the untouched model depend on."""
    model, data, drawn, settings = recipe.model, recipe.data, recipe.rollout, recipe.eval
    rewards = recipe.rewards
    return {
        "model": model.model_dump(
            include={
                *("path", "revision", "family", "options"),
                *("dtype", "resolution", "max_sequence_length"),
            }
        ),
        "precision": recipe.train.precision,
        "prompts": [
            data.eval_split,
            settings.prompts,
            settings.images_per_prompt,
            {name: source.eval_path or source.path for name, source in data.sources.items()},
        ],
        "seed": settings.seed,
        "sampling": [
            settings.sampler or drawn.sampler,
            settings.steps or drawn.steps,
            settings.guidance or drawn.guidance,
        ],
        "rewards": [
            [(entry.name, entry.reward, entry.sources, entry.options) for entry in group]
            for group in (rewards.train, rewards.heldout)
        ],
    }


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one that knows no links
        shutil.copy2(source, target)
