"""Does a scene satisfy a prompt? The truth that rewards are held to, from geometry alone."""

from math import hypot
from typing import Any

from marble.studio.world.grammar import Prompt
from marble.studio.world.scene import Scene, Thing

_SLACK = 0.1  # GenEval's position threshold, in widths of the two boxes
_DIRECTION = 0.5  # least share of the offset that must lie along an axis


def relations(a: Thing, b: Thing) -> set[str]:
    """GenEval's rule for where `a` is, seen from `b`.

    The offset between the centres is shortened on each axis by 0.1 of both boxes' extent;
    what remains, over the length of the whole offset, must exceed ½ in a direction.
    """
    (ax, ay), (bx, by) = a.centre, b.centre
    dx, dy = ax - bx, ay - by
    wide = sum(t.box[2] - t.box[0] for t in (a, b))
    tall = sum(t.box[3] - t.box[1] for t in (a, b))
    length = hypot(dx, dy)
    right = _shorten(dx, _SLACK * wide) / length if length else 0.0
    down = _shorten(dy, _SLACK * tall) / length if length else 0.0
    found = {
        "left of": right < -_DIRECTION,
        "right of": right > _DIRECTION,
        "above": down < -_DIRECTION,
        "below": down > _DIRECTION,
    }
    return {name for name, holds in found.items() if holds}


def _shorten(offset: float, by: float) -> float:
    return max(abs(offset) - by, 0.0) * (1 if offset > 0 else -1)


def satisfies(scene: Scene, prompt: Prompt) -> bool:
    """Whether the scene shows what the prompt asks for.

    `geneval` prompts by GenEval's strict rules (more objects than asked for are an error only
    where the prompt excludes them); `general` prompts want the exact number and the style;
    `ocr` prompts the word, the kind of board and its colour where one is named.
    """
    meta = prompt["metadata"]
    if prompt["source"] == "ocr":
        return _sign_is(scene, meta)
    if prompt["source"] == "general":
        total = sum(entry["count"] for entry in meta["include"])
        if scene.style != meta["style"] or len(scene.things) != total:
            return False
    matched: list[list[Thing]] = []
    for entry in meta["include"]:
        found = [t for t in scene.things if _is(t, entry)]
        if len(found) < entry["count"]:
            return False
        if "position" in entry:
            relation, index = entry["position"]
            if not all(relation in relations(t, o) for t in found for o in matched[index]):
                return False
        matched.append(found)
    return not any(
        sum(_is(t, entry) for t in scene.things) >= entry["count"]
        for entry in meta.get("exclude", [])
    )


def _is(thing: Thing, entry: dict[str, Any]) -> bool:
    return thing.name == entry["class"] and entry.get("color") in (None, thing.color)


def _sign_is(scene: Scene, meta: dict[str, Any]) -> bool:
    sign = scene.sign
    return (
        sign is not None
        and sign.text == meta["text"]
        and sign.board == meta["board"]
        and meta.get("color") in (None, sign.color)
    )
