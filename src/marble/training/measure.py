"""Evaluation on its own: a recipe's model, trained or untouched, on its held-out prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marble.evaluation import drift_statistics
from marble.models.build import build_adapter
from marble.models.lora import read_file
from marble.recipe import Recipe
from marble.sampling import slider_weights, wear
from marble.training.evaluate import evaluate_policy
from marble.training.folder import write_pictures
from marble.training.metrics import plain
from marble.training.processes import Processes
from marble.training.setup import build_rewards, check, evaluation_samples


def measure(
    recipe: Recipe,
    lora: Path | None,
    *,
    out: Path | None = None,
    device: str | None = None,
    prefer: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Means with intervals, over all processes; pictures with their scores into `out`, if given.

    prefer: slider weights, where the LoRA has sliders.
    """
    check(recipe, training=False)
    if lora is not None:
        read_file(lora)  # a file that is no LoRA is refused before the model loads
    weights = slider_weights(lora, prefer)
    samples = evaluation_samples(recipe)
    processes = Processes(device)
    rewards = build_rewards(recipe, processes.device)
    adapter = build_adapter(recipe, processes.device)
    if lora is not None:
        wear(adapter, lora, weights)
    policy = "base" if lora is None else "default"
    try:
        result = evaluate_policy(adapter, rewards, samples, recipe, processes, policy=policy)
    finally:
        for part in rewards:
            if part is not None:
                part.close()
    told = processes.gather([w for part in rewards if part is not None for w in part.warnings()])
    if processes.is_main:
        for warning in dict.fromkeys(w for part in told for w in part):
            print(f"marble: {warning}", file=sys.stderr)
    names = recipe.rewards.names
    if out is not None and processes.is_main:
        groups = [s.group for s in samples]
        statistics = drift_statistics(result.images.numpy(), groups)
        out.mkdir(parents=True, exist_ok=True)
        write_pictures(
            out, 0, samples, result.images, result.scores, trained=names, drift=statistics
        )
    record: dict[str, Any] = plain({**result.record(names), "seconds": result.seconds})
    return record
