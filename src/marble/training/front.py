"""One model at many settings of its sliders, on the same held-out prompts and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from marble.data import Sample
from marble.harmonise import corner
from marble.models.base import Adapter
from marble.models.lora import State
from marble.models.sliders import Sliders
from marble.recipe import Recipe
from marble.rewards import RewardSet
from marble.training.evaluate import Evaluation, evaluate_policy
from marble.training.processes import Processes


def corners(sliders: Sliders) -> dict[str, list[float]]:
    """The default weights, and for each reward those that raise it as far as the range allows."""
    k = len(sliders.names)
    raised = {name: corner(k, i, sliders.most).tolist() for i, name in enumerate(sliders.names)}
    return {"default": [1.0] * k, **raised}


def mixtures(sliders: Sliders) -> dict[str, list[float]]:
    """Half-way between every two corners."""
    ends = list(corners(sliders).items())[1:]
    return {
        f"{a} + {b}": ((np.array(one) + np.array(two)) / 2).tolist()
        for i, (a, one) in enumerate(ends)
        for b, two in ends[i + 1 :]
    }


def line(sliders: Sliders, name: str, count: int = 7) -> list[list[float]]:
    """One slider over its range, from 0 up, with all others at their default."""
    raised, lines = sliders.names.index(name), []
    for value in np.linspace(0.0, sliders.top, count):
        weights = [1.0] * len(sliders.names)
        weights[raised] = float(value)
        lines.append(weights)
    return lines


def measured(
    adapter: Adapter,
    rewards: Sequence[RewardSet | None],
    samples: Sequence[Sample],
    recipe: Recipe,
    processes: Processes,
    states: Mapping[str, State],
) -> Iterator[tuple[str, Evaluation]]:
    """Pictures and scores of the same samples under each of the LoRAs, one after the other."""
    for label, state in states.items():
        with adapter.swapped(state):
            found = evaluate_policy(adapter, rewards, samples, recipe, processes, policy="default")
        yield label, found
