"""A run folder as a place to measure at: its recipe, its newest checkpoint, its coefficients."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marble.balance.settings import MERGED
from marble.errors import MarbleError
from marble.recipe import Recipe, load_recipe
from marble.training.checkpoint import State, load_state, newest_complete

LAST = 10


@dataclass(frozen=True)
class Place:
    """`state` is None at the base; `coefficients_K` are None where the run has no such thing."""

    name: str
    recipe: Recipe
    state: State | None
    coefficients_K: np.ndarray | None

    @property
    def step(self) -> int:
        return 0 if self.state is None else int(self.state.meta["step"])

    @property
    def epoch(self) -> int:
        return 0 if self.state is None else int(self.state.meta["epoch"])


def open_run(folder: Path, *, base: bool = False) -> Place:
    """The run in `folder` at its newest whole checkpoint, or before its first step."""
    if not (folder / "config.yaml").is_file():
        what = "not a run folder (it has no config.yaml)" if folder.is_dir() else "no such folder"
        raise MarbleError(f"{folder}: {what}; give the folder of a run, such as runs/mine")
    recipe = load_recipe(str(folder / "config.yaml"))
    state: State | None = None
    if not base:
        try:
            checkpoint, _ = newest_complete(folder / "checkpoints")
        except MarbleError as error:
            raise MarbleError(
                f"{error}; measure its untrained model with --base, or finish the run with "
                f"`marble train --resume {folder}`"
            ) from None
        state = load_state(checkpoint)
    step = None if state is None else int(state.meta["step"])
    return Place(folder.resolve().name, recipe, state, _own_coefficients(folder, recipe, step))


def _own_coefficients(folder: Path, recipe: Recipe, step: int | None) -> np.ndarray | None:
    """Mean coefficients of the run's last steps (up to `step`); merged rewards have none."""
    path = folder / "metrics.jsonl"
    if recipe.balance.method in MERGED or not path.is_file():
        return None
    keys = [f"coefficient/{name}" for name in recipe.rewards.names]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if step is None or row["step"] <= step]
    found = [
        [row[key] for key in keys] for row in rows if all(row.get(k) is not None for k in keys)
    ]
    if not found:
        return None
    mean = np.mean(found[-LAST:], axis=0)
    return mean if mean.sum() > 0 and (mean >= 0).all() else None
