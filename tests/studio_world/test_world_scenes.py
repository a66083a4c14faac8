"""Scenes: what is composed satisfies its prompt, what is broken does not, and both fit."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from _world_draws import draws

from marble.errors import MarbleError
from marble.studio.world import (
    BREAKS,
    SIZE,
    Scene,
    Thing,
    break_scene,
    compose,
    load_split,
    parse,
    possible_breaks,
    satisfies,
)
from marble.studio.world.grammar import geneval_prompt, item
from marble.studio.world.judge import relations


def test_composed_scenes_satisfy_their_prompts() -> None:
    for prompt, scene, _ in draws(600):
        assert satisfies(scene, prompt), prompt["prompt"]


@pytest.mark.parametrize("source", ["geneval", "ocr", "general"])
def test_every_shipped_prompt_can_be_drawn(source: str) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for prompt in load_split(source, split):
            assert satisfies(compose(prompt, rng), prompt), prompt["prompt"]


def test_broken_scenes_violate_their_prompts() -> None:
    seen = Counter()
    for prompt, scene, rng in draws(300, seed=1):
        for kind in possible_breaks(prompt):
            broken = break_scene(scene, prompt, rng, kind)
            assert not satisfies(broken, prompt), (kind, prompt["prompt"])
            seen[kind] += 1
        assert not satisfies(break_scene(scene, prompt, rng), prompt)
    assert set(seen) == set(BREAKS)


def test_a_break_changes_one_thing() -> None:
    for prompt, scene, rng in draws(150, seed=2):
        for kind in possible_breaks(prompt):
            broken = break_scene(scene, prompt, rng, kind)
            if kind == "letter":
                assert scene.sign and broken.sign
                assert sum(a != b for a, b in zip(scene.sign.text, broken.sign.text)) == 1
                assert broken == replace(scene, sign=replace(scene.sign, text=broken.sign.text))
            if kind == "count":
                assert abs(len(broken.things) - len(scene.things)) == 1
            if kind == "object":
                pairs = zip(scene.things, broken.things)
                assert sum(a.name != b.name for a, b in pairs) == 1
                assert [t.color for t in scene.things] == [t.color for t in broken.things]
            if kind == "style":
                assert broken == replace(scene, style=broken.style)


def test_an_impossible_break_is_refused() -> None:
    prompt = parse('a sign that says "TEA"', "ocr")
    rng = np.random.default_rng(0)
    with pytest.raises(MarbleError, match="letter, word"):
        break_scene(compose(prompt, rng), prompt, rng, "side")


def test_objects_lie_inside_and_hardly_overlap() -> None:
    for prompt, scene, _ in draws(400, seed=3):
        boxes = [t.box for t in scene.things]
        for x0, y0, x1, y1 in boxes:
            assert 0 <= x0 < x1 <= SIZE and 0 <= y0 < y1 <= SIZE
            assert max(x1 - x0, y1 - y0) >= 22, prompt["prompt"]
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                w = min(a[2], b[2]) - max(a[0], b[0])
                h = min(a[3], b[3]) - max(a[1], b[1])
                shared = max(w, 0) * max(h, 0)
                assert shared <= 0.05 * (a[2] - a[0]) * (a[3] - a[1]), prompt["prompt"]


def thing(name: str, x: int, y: int, color: str | None = None) -> Thing:
    return Thing(name, color, (x, y, x + 20, y + 20))


def test_relations_by_genevals_rule() -> None:
    dog = thing("dog", 20, 20)
    assert relations(thing("cat", 42, 20), dog) == {"right of"}
    assert relations(thing("cat", 20, 0), dog) == {"above"}
    # 0.1 · (20 + 20) = 4 pixels are forgiven on each axis
    assert relations(thing("cat", 24, 20), dog) == set()
    assert relations(thing("cat", 40, 40), dog) == {"right of", "below"}
    assert relations(dog, dog) == set()


def test_strict_rules_on_hand_made_scenes() -> None:
    two = geneval_prompt("counting", [item("dog", 2)])
    dogs = [thing("dog", 0, 0), thing("dog", 30, 0), thing("dog", 0, 30)]
    assert [satisfies(Scene(things=tuple(dogs[:n])), two) for n in (1, 2, 3)] == [
        False,
        True,
        False,
    ]
    # without an exclude entry a surplus is no error
    one = geneval_prompt("single_object", [item("dog")])
    assert satisfies(Scene(things=tuple(dogs)), one)
    attr = geneval_prompt("color_attr", [item("car", 1, "red"), item("cup", 1, "blue")])
    right = Scene(things=(thing("car", 0, 0, "red"), thing("cup", 30, 0, "blue")))
    wrong = Scene(things=(thing("car", 0, 0, "blue"), thing("cup", 30, 0, "red")))
    assert satisfies(right, attr) and not satisfies(wrong, attr)
    where = geneval_prompt("position", [item("dog"), {**item("cat"), "position": ["left of", 0]}])
    assert where["prompt"] == "a photo of a cat left of a dog"
    assert satisfies(Scene(things=(thing("dog", 40, 0), thing("cat", 0, 0))), where)
    assert not satisfies(Scene(things=(thing("dog", 0, 0), thing("cat", 40, 0))), where)
