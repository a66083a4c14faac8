"""A run folder as a place to measure at: its recipe, its newest checkpoint, its coefficients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import MarbleError
from marble.evaluation.reading import numbers, run_folder, step_of
from marble.evaluation.runs import read_jsonl
from marble.recipe import Recipe, load_recipe
from marble.training.checkpoint import State, load_state, newest_complete

LAST, FIRST = 10, 5


@dataclass(frozen=True)
class Place:
    """Where to measure.

    state: None at the base. coefficients_K: means of the run's last steps, None where it has none.
    scores_SK: mean scores of the run's own batches at this place, NaN where one has none.
    """

    name: str
    recipe: Recipe
    state: State | None
    coefficients_K: np.ndarray | None
    scores_SK: np.ndarray
    passed_over: dict[str, str] = field(default_factory=dict)
    """Newer checkpoints that are damaged, and what is wrong with each."""

    @property
    def step(self) -> int:
        return 0 if self.state is None else int(self.state.meta["step"])

    @property
    def epoch(self) -> int:
        return 0 if self.state is None else int(self.state.meta["epoch"])


def open_run(folder: Path, *, base: bool = False, trust: bool = False) -> Place:
    """The run in `folder` at its newest whole checkpoint, or before its first step."""
    folder = run_folder(folder)
    recipe = load_recipe(str(folder / "config.yaml"), trust=trust)
    state: State | None = None
    damaged: dict[Path, str] = {}
    if not base:
        try:
            checkpoint, damaged = newest_complete(folder / "checkpoints")
        except MarbleError as error:
            raise MarbleError(
                f"{error}; measure its untrained model with --base, or finish the run with "
                f"`marble train --resume {folder}`"
            ) from None
        state = load_state(checkpoint)
    rows = _metrics(folder, None if state is None else int(state.meta["step"]))
    near = rows[:FIRST] if base else rows[-LAST:]
    return Place(
        folder.resolve().name,
        recipe,
        state,
        _own_coefficients(recipe, rows[-LAST:]),
        _columns(near, [f"reward/{name}/mean" for name in recipe.rewards.names]),
        {path.name: problem for path, problem in damaged.items()},
    )


def _metrics(folder: Path, step: int | None) -> list[dict[str, Any]]:
    """Rows of the run's steps, up to `step`; none where there is no such file."""
    rows = read_jsonl(folder / "metrics.jsonl")
    return [
        row for row in rows if (at := step_of(row)) is not None and (step is None or at <= step)
    ]


def _columns(rows: list[dict[str, Any]], keys: list[str]) -> np.ndarray:
    values = [[numbers(row).get(key, np.nan) for key in keys] for row in rows]
    return np.array(values, dtype=np.float64).reshape(len(rows), len(keys))


def _own_coefficients(recipe: Recipe, rows: list[dict[str, Any]]) -> np.ndarray | None:
    """Mean coefficients; a run that merged its rewards before the gradient has none."""
    if recipe.balance.rule.merges or not rows:
        return None
    mean = _columns(rows, [f"coefficient/{name}" for name in recipe.rewards.names]).mean(0)
    return mean if mean.sum() > 0 and (mean >= 0).all() else None
