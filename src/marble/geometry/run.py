"""A run folder in, the whole record out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from marble.geometry.check import compare_scores
from marble.geometry.folder import LAST, open_run
from marble.geometry.gradients import Target, collect
from marble.geometry.report import measure
from marble.training.metrics import plain


def measure_run(
    folder: Path,
    *,
    base: bool = False,
    batches: int = 24,
    seed: int = 0,
    target: Target | None = None,
    device: str | None = None,
    trust: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Everything that `marble geometry` says, with the settings it was measured under; for JSON."""
    place = open_run(folder, base=base, trust=trust)
    gradients = collect(
        place, batches=batches, seed=seed, target=target, device=device, progress=progress
    )
    recipe, own = place.recipe, place.coefficients_K
    names = recipe.rewards.names
    pictures = recipe.data.prompts_per_epoch * recipe.data.images_per_prompt
    record = {
        "run": place.name,
        "recipe": recipe.name,
        "method": recipe.balance.method,
        "base": base,
        "step": place.step,
        "passed_over": place.passed_over,
        "rewards": names,
        "settings": {
            "batches": batches,
            "seed": seed,
            "run_seed": recipe.train.seed,
            "target": gradients.target,
            "pictures": pictures // recipe.train.steps_per_epoch,
            "timesteps": recipe.timesteps_per_sample,
            "parameters": gradients.rows_BRT.shape[2],
            "as_trained": None if own is None else dict(zip(names, own.tolist())),
            "as_trained_steps": LAST,
        },
        "scores": compare_scores(names, gradients.scores_BK, place.scores_SK),
        **measure(gradients, own),
    }
    found: dict[str, Any] = plain(_python(record))
    return found


def _python(value: Any) -> Any:
    """Plain Python numbers and lists for numpy's."""
    if isinstance(value, dict):
        return {key: _python(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_python(v) for v in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
