"""One model at many settings of its sliders, on the same held-out prompts and seeds.

A run of method `steer` ends by drawing some of its probe's pictures at each of `settings`, into
`front/` of its folder; the report has sliders over them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from marble.data import Sample
from marble.evaluation import relative_gains
from marble.evaluation.drift import diversity
from marble.harmonise import corner
from marble.models.base import Adapter
from marble.models.lora import State
from marble.models.sliders import Sliders
from marble.recipe import Recipe
from marble.rewards import RewardSet
from marble.training.evaluate import Evaluation, evaluate_policy
from marble.training.processes import Processes

MEASURED, SHOWN = 24, 6
"""Prompts of the probe that are drawn at every setting, and those whose pictures are kept."""


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


def settings(sliders: Sliders) -> dict[str, list[float]]:
    """What a run's front is made of: the default, corners, half-way between two corners, and each
    slider at 0."""
    lows = {f"no {name}": line(sliders, name, 2)[0] for name in sliders.names}
    return {**corners(sliders), **mixtures(sliders), **lows}


def some_groups(samples: Sequence[Sample], count: int) -> list[Sample]:
    """All samples of `count` groups, evenly from the list, which has one source after another."""
    groups = list(dict.fromkeys(s.group for s in samples))
    at = np.linspace(0, len(groups) - 1, min(count, len(groups))).round().astype(int)
    chosen = {groups[i] for i in at}
    return [s for s in samples if s.group in chosen]


def write_front(
    folder: Path,
    step: int,
    sliders: Sliders,
    weights: Mapping[str, Sequence[float]],
    base: Evaluation,
    found: Mapping[str, Evaluation],
) -> None:
    """`index.json` with the gains at every setting, and the pictures of a few prompts there."""
    folder.mkdir(exist_ok=True)
    names, groups = list(sliders.names), [s.group for s in base.samples]
    first = {s.group: i for i, s in reversed(list(enumerate(base.samples)))}
    shown = [first[s.group] for s in some_groups([base.samples[i] for i in first.values()], SHOWN)]
    before = np.stack([base.scores[name] for name in names])
    spread = float(np.nanmean(diversity(base.images.numpy(), groups)))
    entries: list[dict[str, Any]] = []
    for label, evaluation in found.items():
        gains = relative_gains(np.stack([evaluation.scores[name] for name in names]), before)
        files = [f"{len(entries):03d}-{n}.png" for n in range(len(shown))]
        for i, file in zip(shown, files):
            picture = evaluation.images[i].permute(1, 2, 0).numpy()
            Image.fromarray(picture).save(folder / file)
        now = float(np.nanmean(diversity(evaluation.images.numpy(), groups)))
        entries.append(
            {
                "label": label,
                "weights": list(weights[label]),
                "gains": [float(g) if np.isfinite(g) else None for g in gains],
                "diversity": now / spread if spread > 0 else None,
                "files": files,
            }
        )
    index = {
        "step": step,
        "names": names,
        "top": sliders.top,
        "pictures": len(base.samples),
        "samples": [
            {"prompt": s.prompt.text, "source": s.prompt.source, "seed": s.seed}
            for s in (base.samples[i] for i in shown)
        ],
        "settings": entries,
    }
    (folder / "index.json").write_text(json.dumps(index, indent=1, allow_nan=False) + "\n")
