"""From a prompt to a scene that satisfies it: which objects, where, on what background."""

from dataclasses import replace
from typing import Any

import numpy as np

from marble.studio.world.backdrop import PATTERNS, choose_background
from marble.studio.world.grammar import Prompt
from marble.studio.world.language import COLORS
from marble.studio.world.scene import SIZE, Box, Scene, Sign, Thing
from marble.studio.world.signs import FONTS
from marble.studio.world.sprites import PAINT, aspect, rim_colour

# number of objects -> (smallest, largest) longest side in pixels
SIZES: dict[int, tuple[int, int]] = {
    1: (34, 44),
    2: (26, 29),
    3: (24, 27),
    4: (22, 25),
    5: (18, 19),
}
_EDGE = 2  # pixels kept free at the border

# number of objects -> arrangements, each a list of centres in units of the picture
_ROW = [(0.25, 0.5), (0.75, 0.5)]
_COLUMN = [(0.5, 0.25), (0.5, 0.75)]
LAYOUTS: dict[int, list[list[tuple[float, float]]]] = {
    1: [[(0.5, 0.5)]],
    2: [_ROW, _COLUMN, [(0.28, 0.28), (0.72, 0.72)], [(0.72, 0.28), (0.28, 0.72)]],
    3: [
        [(0.5, 0.26), (0.26, 0.74), (0.74, 0.74)],
        [(0.26, 0.26), (0.74, 0.26), (0.5, 0.74)],
        [(0.26, 0.26), (0.26, 0.74), (0.74, 0.5)],
        [(0.74, 0.26), (0.74, 0.74), (0.26, 0.5)],
    ],
    4: [[(0.27, 0.27), (0.73, 0.27), (0.27, 0.73), (0.73, 0.73)]],
    5: [[(0.2, 0.2), (0.8, 0.2), (0.5, 0.5), (0.2, 0.8), (0.8, 0.8)]],
}
Wanted = tuple[str, str | None]
"""Class and colour (None: natural) of an object to place."""


def fit(name: str, longest: int, centre: tuple[float, float]) -> Box:
    """The object's box at a size, around a centre in pixels, moved inside the picture."""
    ratio = aspect(name)
    w = longest if ratio >= 1 else max(1, round(longest * ratio))
    h = longest if ratio < 1 else max(1, round(longest / ratio))
    x = min(max(round(centre[0] - w / 2), _EDGE), SIZE - _EDGE - w)
    y = min(max(round(centre[1] - h / 2), _EDGE), SIZE - _EDGE - h)
    return x, y, x + w, y + h


def place(
    wanted: list[Wanted],
    rng: np.random.Generator,
    layout: list[tuple[float, float]] | None = None,
) -> tuple[Thing, ...]:
    """Objects at the centres of a layout (a random one by default), slightly jittered."""
    n = len(wanted)
    if layout is None:
        options = LAYOUTS[n]
        layout = options[int(rng.integers(len(options)))]
    low, high = SIZES[n]
    longest = int(rng.integers(low, high + 1))
    slack = 3 if n == 1 else 1
    things = []
    for (name, color), (cx, cy) in zip(wanted, layout):
        jitter = rng.integers(-slack, slack + 1, size=2)
        centre = (cx * SIZE + jitter[0], cy * SIZE + jitter[1])
        things.append(Thing(name, color, fit(name, longest, centre), bool(rng.random() < 0.5)))
    return tuple(things)


def relation_layout(relation: str) -> list[tuple[float, float]]:
    """Centres for (the reference, the object that is `relation` it)."""
    layout = _ROW if relation in ("left of", "right of") else _COLUMN
    return layout if relation in ("right of", "below") else layout[::-1]


def compose(prompt: Prompt, rng: np.random.Generator) -> Scene:
    """A random scene that satisfies the prompt."""
    meta = prompt["metadata"]
    seed = int(rng.integers(2**31))
    if prompt["source"] == "ocr":
        return _signpost(meta, rng, seed)
    wanted = [(e["class"], e.get("color")) for e in meta["include"] for _ in range(e["count"])]
    relation = next((e["position"][0] for e in meta["include"] if "position" in e), None)
    things = place(wanted, rng, relation_layout(relation) if relation else None)
    scene = Scene(things=things, style=meta.get("style"), seed=seed)
    return scene if scene.style else on_background(scene, rng)


def on_background(scene: Scene, rng: np.random.Generator) -> Scene:
    """The scene on a background that contrasts with its objects or its sign."""
    rims = [(rim_colour(thing.name, thing.color), thing.color) for thing in scene.things]
    if scene.sign:
        rims.append((PAINT[scene.sign.color][1], scene.sign.color))
    pattern = "plain" if scene.sign else PATTERNS[int(rng.integers(len(PATTERNS)))]
    return replace(scene, background=choose_background(rims, rng), pattern=pattern)


def _signpost(meta: dict[str, Any], rng: np.random.Generator, seed: int) -> Scene:
    sign = Sign(
        text=meta["text"],
        board=meta["board"],
        color=meta.get("color") or COLORS[int(rng.integers(len(COLORS)))],
        font=int(rng.integers(len(FONTS))),
        lean=int(rng.integers(-2, 3)),
    )
    return on_background(Scene(sign=sign, seed=seed), rng)
