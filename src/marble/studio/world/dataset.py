"""Captioned pictures in bulk, the same for a seed whatever the number of processes."""

import multiprocessing
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from marble.errors import MarbleError
from marble.studio.world.breaking import break_scene
from marble.studio.world.compose import compose
from marble.studio.world.grammar import SOURCES
from marble.studio.world.language import CLASSES, COLORS
from marble.studio.world.prompts import random_prompt
from marble.studio.world.render import render
from marble.studio.world.scene import SIZE, Scene

MAX_THINGS = 6
"""Rows kept for the objects of one picture; unused rows are padding."""

MIX: dict[str, float] = {"geneval": 0.45, "ocr": 0.35, "general": 0.20}
"""Default share of each source."""

_CHUNK = 512  # pictures a task


def generate(
    n: int,
    seed: int,
    workers: int = 1,
    sloppy: float = 0.0,
    sources: Mapping[str, float] | None = None,
    split: str = "train",
) -> dict[str, Any]:
    """`n` random pictures with their captions and everything that is true of them.

    Args:
        n: number of pictures.
        seed: picture i depends on (seed, i) alone.
        workers: processes.
        sloppy: probability that a picture has one deliberate error while its caption stays,
            as captions on the web do. It leaves a model trained on them room to improve.
        sources: weight of each prompt source (default `MIX`).
        split: "train" (no held-out combination) or "test" (at least one).

    Returns:
        images uint8 [n, 64, 64, 3]; prompts list[str]; metadata list[dict] (with `source`);
        boxes float32 [n, 6, 4] in pixels (x0, y0, x1, y1; 0 where padding); labels int16
        [n, 6], index into CLASSES (−1: padding); colors int16 [n, 6], index into COLORS
        (−1: natural colours or padding); broken bool [n]; texts list[str | None], what is
        written in the picture.
    """
    weights = dict(MIX if sources is None else sources)
    if unknown := set(weights) - set(SOURCES):
        raise MarbleError(f"no source {sorted(unknown)}; sources: {', '.join(SOURCES)}")
    spans = [(start, min(start + _CHUNK, n)) for start in range(0, n, _CHUNK)]
    tasks = [(span, seed, sloppy, weights, split) for span in spans]
    out: dict[str, Any] = {
        "images": np.zeros((n, SIZE, SIZE, 3), dtype=np.uint8),
        "prompts": [],
        "metadata": [],
        "boxes": np.zeros((n, MAX_THINGS, 4), dtype=np.float32),
        "labels": np.full((n, MAX_THINGS), -1, dtype=np.int16),
        "colors": np.full((n, MAX_THINGS), -1, dtype=np.int16),
        "broken": np.zeros(n, dtype=bool),
        "texts": [],
    }
    if workers <= 1 or len(tasks) <= 1:
        _collect(out, spans, map(_chunk, tasks))
    else:
        # fork: nothing but numpy and Pillow runs in the children, and scripts need no guard
        method = "fork" if sys.platform == "linux" else "spawn"
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            _collect(out, spans, pool.map(_chunk, tasks))
    return out


def _collect(out: dict[str, Any], spans: list[tuple[int, int]], parts: Any) -> None:
    for (start, stop), part in zip(spans, parts):
        for key, value in part.items():
            if isinstance(value, list):
                out[key] += value
            else:
                out[key][start:stop] = value


def _chunk(task: tuple[tuple[int, int], int, float, dict[str, float], str]) -> dict[str, Any]:
    (start, stop), seed, sloppy, weights, split = task
    n = stop - start
    names = list(weights)
    shares = np.cumsum(list(weights.values())) / sum(weights.values())
    images = np.empty((n, SIZE, SIZE, 3), dtype=np.uint8)
    broken = np.zeros(n, dtype=bool)
    scenes, prompts = [], []
    for i in range(n):
        rng = np.random.default_rng([seed, start + i])
        source = names[int(np.searchsorted(shares, rng.random(), side="right"))]
        prompt = random_prompt(source, rng, split)
        scene = compose(prompt, rng)
        broken[i] = rng.random() < sloppy
        if broken[i]:
            scene = break_scene(scene, prompt, rng)
        images[i] = render(scene)
        scenes.append(scene)
        prompts.append(prompt)
    return {
        "images": images,
        "prompts": [p["prompt"] for p in prompts],
        "metadata": [p["metadata"] for p in prompts],
        "broken": broken,
        "texts": [scene.sign.text if scene.sign else None for scene in scenes],
        **truth(scenes),
    }


def truth(scenes: list[Scene]) -> dict[str, np.ndarray]:
    """`boxes`, `labels` and `colors` of scenes, padded as in `generate`."""
    boxes = np.zeros((len(scenes), MAX_THINGS, 4), dtype=np.float32)
    labels = np.full((len(scenes), MAX_THINGS), -1, dtype=np.int16)
    colors = np.full((len(scenes), MAX_THINGS), -1, dtype=np.int16)
    for i, scene in enumerate(scenes):
        for j, thing in enumerate(scene.things):
            boxes[i, j] = thing.box
            labels[i, j] = CLASSES.index(thing.name)
            colors[i, j] = COLORS.index(thing.color) if thing.color else -1
    return {"boxes": boxes, "labels": labels, "colors": colors}
