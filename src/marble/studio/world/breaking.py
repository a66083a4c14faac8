"""One deliberate error: a scene changed just so far that its prompt no longer holds."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from marble.errors import MarbleError
from marble.studio.world.compose import fit, on_background, place
from marble.studio.world.grammar import Prompt
from marble.studio.world.heldout import is_held_out
from marble.studio.world.language import CLASSES, COLORABLE, COLORS, LETTERS, STYLES
from marble.studio.world.scene import Scene, Sign
from marble.studio.world.words import TRAIN_WORDS

BREAKS: tuple[str, ...] = ("count", "color", "side", "object", "letter", "word", "style")


def possible_breaks(prompt: Prompt) -> tuple[str, ...]:
    """The kinds of error a picture for this prompt can have."""
    meta = prompt["metadata"]
    if prompt["source"] == "ocr":
        return ("letter", "word", "color") if "color" in meta else ("letter", "word")
    kinds = ["object"]
    if prompt["source"] == "general":
        kinds += ["count", "style"]
    elif meta["tag"] not in ("single_object", "colors"):
        kinds.append("count")
    if any("color" in entry for entry in meta["include"]):
        kinds.append("color")
    if any("position" in entry for entry in meta["include"]):
        kinds.append("side")
    return tuple(kinds)


def break_scene(
    scene: Scene, prompt: Prompt, rng: np.random.Generator, kind: str | None = None
) -> Scene:
    """The scene with exactly one error of a kind (a random possible one by default)."""
    kinds = possible_breaks(prompt)
    if kind is None:
        kind = kinds[int(rng.integers(len(kinds)))]
    if kind not in kinds:
        raise MarbleError(
            f'a picture for "{prompt["prompt"]}" cannot have a wrong {kind}; '
            f"possible errors: {', '.join(kinds)}"
        )
    change: Callable[[Scene, Prompt, np.random.Generator], Scene] = {
        "count": _wrong_count,
        "color": _wrong_color,
        "side": _wrong_side,
        "object": _wrong_object,
        "letter": _wrong_letter,
        "word": _wrong_word,
        "style": _wrong_style,
    }[kind]
    return change(scene, prompt, rng)


def _other(rng: np.random.Generator, items: tuple[str, ...], *without: str | None) -> str:
    left = [i for i in items if i not in without]
    return left[int(rng.integers(len(left)))]


def _settled(scene: Scene, rng: np.random.Generator) -> Scene:
    """Objects changed, so the background may have to."""
    return scene if scene.style else on_background(scene, rng)


def _wrong_count(scene: Scene, prompt: Prompt, rng: np.random.Generator) -> Scene:
    meta = prompt["metadata"]
    wanted = [(t.name, t.color) for t in scene.things]
    # GenEval takes a surplus for an error only in counting prompts.
    may_add = prompt["source"] == "general" or meta["tag"] == "counting"
    i = int(rng.integers(len(wanted)))
    if len(wanted) == 1 or (may_add and rng.random() < 0.5):
        wanted.insert(i, wanted[i])
    else:
        del wanted[i]
    return replace(scene, things=place(wanted, rng))


def _wrong_color(scene: Scene, prompt: Prompt, rng: np.random.Generator) -> Scene:
    if scene.sign:
        color = _other(rng, COLORS, scene.sign.color)
        return on_background(replace(scene, sign=replace(scene.sign, color=color)), rng)
    painted = [i for i, t in enumerate(scene.things) if t.color]
    if len(painted) == 2 and rng.random() < 0.5:  # the colours of both, exchanged
        a, b = (scene.things[i] for i in painted)
        scene = scene.with_thing(painted[0], replace(a, color=b.color))
        return _settled(scene.with_thing(painted[1], replace(b, color=a.color)), rng)
    i = painted[int(rng.integers(len(painted)))]
    thing = scene.things[i]
    color = _other(rng, COLORS, thing.color)
    return _settled(scene.with_thing(i, replace(thing, color=color)), rng)


def _wrong_side(scene: Scene, prompt: Prompt, rng: np.random.Generator) -> Scene:
    a, b = scene.things
    longest = [max(t.box[2] - t.box[0], t.box[3] - t.box[1]) for t in (a, b)]
    swapped = (
        replace(a, box=fit(a.name, longest[0], b.centre)),
        replace(b, box=fit(b.name, longest[1], a.centre)),
    )
    return replace(scene, things=swapped)


def _wrong_object(scene: Scene, prompt: Prompt, rng: np.random.Generator) -> Scene:
    i = int(rng.integers(len(scene.things)))
    old = scene.things[i]
    present = [t.name for t in scene.things]
    name = _other(rng, COLORABLE if old.color else CLASSES, *present)
    longest = max(old.box[2] - old.box[0], old.box[3] - old.box[1])
    box = fit(name, longest, old.centre)
    return _settled(scene.with_thing(i, replace(old, name=name, box=box)), rng)


def _the_sign(scene: Scene) -> Sign:
    assert scene.sign is not None
    return scene.sign


def _wrong_letter(scene: Scene, prompt: Prompt, rng: np.random.Generator) -> Scene:
    sign = _the_sign(scene)
    while True:
        i = int(rng.integers(len(sign.text)))
        letter = _other(rng, tuple(LETTERS), sign.text[i])
        text = sign.text[:i] + letter + sign.text[i + 1 :]
        if not is_held_out("word", text):  # never draw a word that is kept for testing
            return replace(scene, sign=replace(sign, text=text))


def _wrong_word(scene: Scene, prompt: Prompt, rng: np.random.Generator) -> Scene:
    sign = _the_sign(scene)
    return replace(scene, sign=replace(sign, text=_other(rng, TRAIN_WORDS, sign.text)))


def _wrong_style(scene: Scene, prompt: Prompt, rng: np.random.Generator) -> Scene:
    return replace(scene, style=_other(rng, STYLES, scene.style))
