"""A steered run's front: its gains and some pictures at many settings of the sliders."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from marble.evaluation.reading import entries, read_json
from marble.report.folder import Run
from marble.report.numbers import compact
from marble.report.pictures import Store, embedded


def front(run: Run, store: Store, budget: int) -> dict[str, Any] | None:
    """What the page's sliders move over; None where the run has no sliders.

    Settings that are not whole are left out. Pictures come prompt by prompt, each at all settings,
    as far as the budget goes.
    """
    folder = run.path / "front"
    index = read_json(folder / "index.json")
    names, top = index.get("names"), index.get("top")
    if not isinstance(names, list) or len(names) < 2 or not isinstance(top, int | float):
        return None
    settings, files = _settings(entries(index.get("settings")), len(names), folder)
    if not settings:
        return None
    rows = [
        (sample, tuple(own[n] for own in files))
        for n, sample in enumerate(entries(index.get("samples")))
        if all(n < len(own) for own in files)
    ]
    samples = []
    for sample, images in embedded(rows, store, budget):
        prompt, source = str(sample.get("prompt", "")), str(sample.get("source") or "unknown")
        samples.append({"prompt": prompt, "source": source})
        for setting, image in zip(settings, images):
            setting["images"].append(image)
    return {
        "names": [str(name) for name in names],
        "top": float(top),
        "axes": traded(settings),
        "samples": samples,
        "settings": settings,
    }


def traded(settings: list[dict[str, Any]]) -> tuple[int, int]:
    """The two rewards that the sliders trade for each other most: the least covariance of gains."""
    gains = np.array([setting["gains"] for setting in settings], dtype=np.float64)
    gains = gains[np.isfinite(gains).all(1)]
    if len(gains) < 2:
        return 0, 1
    together = np.cov(gains.T).round(9)
    return min(combinations(range(gains.shape[1]), 2), key=lambda pair: together[pair])


def _settings(
    found: list[dict[str, Any]], k: int, folder: Path
) -> tuple[list[dict[str, Any]], list[list[Path]]]:
    """The settings that have K weights and gains, and each one's picture files."""
    settings, files = [], []
    for entry in found:
        weights, gains = (_numbers(entry.get(key)) for key in ("weights", "gains"))
        named = entry.get("files")
        if len(weights) == len(gains) == k and all(map(math.isfinite, weights)):
            settings.append({"weights": weights, "gains": compact(gains), "images": []})
            own = named if isinstance(named, list) else []
            files.append([folder / Path(str(file)).name for file in own])
    return settings, files


def _numbers(values: Any) -> list[float]:
    """A list as numbers, NaN for what is none."""
    if not isinstance(values, list):
        return []
    return [float(v) if isinstance(v, int | float) else math.nan for v in values]
