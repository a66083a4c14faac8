"""Whole steps of both loops, their speeds and ratios, from the parts that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marble.bench import compose
from marble.bench.compose import Counts
from marble.bench.public import BATCH
from marble.duration import reward_seconds
from marble.objectives import objective_class
from marble.recipe import Recipe

MANY = 64
"""A second number of rewards, at which a refresh is measured."""
TARGETS = {
    "pictures per second": 3.0,
    "training": 2.5,
    "sampling": 2.5,
    "MARBLE against weighted sum, N = 10": 0.995,
    "MARBLE against weighted sum, N = 1": 0.92,
}


def summary(
    recipe: Recipe,
    parts: Mapping[str, Mapping[str, float]],
    many: Mapping[str, float],
    found: Mapping[str, Any],
) -> dict[str, Any]:
    """Whole steps, their speeds and ratios, from what was measured."""
    public, own = counts(recipe)
    scoring = reward_seconds(recipe)
    both = "public" in parts
    slow = compose.step(parts["public"], public, refresh=False) if both else {}
    ordinary = compose.step(parts["ours"], own, refresh=False)
    steps = {**({"public": slow} if both else {}), "ours, weighted sum": ordinary}
    if "recorded" in parts["ours"]:
        refresh = compose.step(parts["ours"], own, refresh=True)
        steps["ours, MARBLE N = 10"] = compose.mean_step(ordinary, refresh, 10)
        steps["ours, MARBLE N = 1"] = refresh
    speeds = {name: compose.speed(phases, own.pictures, scoring) for name, phases in steps.items()}
    rated = {name: row["pictures_per_gpu_second"] for name, row in speeds.items()}
    best = "ours, MARBLE N = 10" if "recorded" in parts["ours"] else "ours, weighted sum"
    trained = {name: compose.training_of(phases) for name, phases in steps.items()}
    ratios = {}
    if both:
        ratios = {
            "pictures per second": rated[best] / rated["public"],
            "training": trained["public"] / trained[best],
            "sampling": slow["sampling"] / ordinary["sampling"],
            "decoding": slow["decoding"] / ordinary["decoding"],
        }
    summed = trained["ours, weighted sum"]
    if "recorded" in parts["ours"]:
        for every in (10, 1):
            speed = rated[f"ours, MARBLE N = {every}"] / rated["ours, weighted sum"]
            ratios[f"MARBLE against weighted sum, N = {every}"] = speed
        ratios["refresh by ordinary step, training"] = trained["ours, MARBLE N = 1"] / summed
    if many:
        wide = compose.step({**parts["ours"], **many}, own, refresh=True)
        ratios[f"refresh by ordinary step, training, K = {MANY}"] = (
            compose.training_of(wide) / summed
        )
    peaks = found.get("peak_memory_gb") or {}
    if peaks.get("ours, weighted sum"):
        ratios["memory of MARBLE by weighted sum"] = (
            max(peaks["ours, MARBLE"], peaks["ours, refresh"]) / peaks["ours, weighted sum"]
        )
    return {
        "steps": {name: {"phases_ms": steps[name], **row} for name, row in speeds.items()},
        "ratios": ratios,
        "targets": TARGETS,
        "use_of_device": _use(recipe, parts, (public, own), found),
    }


def counts(recipe: Recipe) -> tuple[Counts, Counts]:
    """Of the public loop and of ours: an epoch's step on one GPU."""
    pictures = recipe.samples_per_epoch // recipe.train.steps_per_epoch
    pairs = objective_class(recipe.objective.name)(recipe.objective).pairs(recipe)
    steps, kl = recipe.rollout.steps, recipe.objective.kl > 0
    public = Counts(pictures, steps, BATCH, pairs, BATCH, 1, 1.0)
    own = Counts(
        pictures,
        steps,
        recipe.rollout.batch_size or BATCH,
        pairs,
        recipe.train.batch_size or BATCH,
        recipe.objective.kl_every if kl else 0,
        recipe.balance.probe,
    )
    return public, own


def _use(
    recipe: Recipe,
    parts: Mapping[str, Mapping[str, float]],
    made: tuple[Counts, Counts],
    found: Mapping[str, Any],
) -> dict[str, Any]:
    """TFLOP/s of the parts, and their share of what a plain matrix product reaches.

    A backward pass through frozen weights counts as one forward. `plain` is v_old, v_θ and a
    backward; `kl` has v_ref too; `recorded` has a second backward.
    """
    if "limit" not in found:
        return {}
    forward = found["limit"]["forward_tflop_per_picture"]
    passes = {"sampling": 1, "plain": 3, "kl": 4, "recorded": 4}
    table: dict[str, Any] = {}
    for name, measured in parts.items():
        count = made[0] if name == "public" else made[1]
        for part, number in passes.items():
            if measured.get(part, 0) <= 0 or (name, part) == ("public", "plain"):
                continue
            batch = count.rollout_batch if part == "sampling" else count.batch
            rate = number * batch * forward / measured[part] * 1e3
            share = rate / found["limit"]["matmul_tflops"]
            table[f"{name}, {part}"] = {"tflops": rate, "share_of_limit": share}
    return table
