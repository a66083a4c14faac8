"""GenEval's six kinds of prompts with their metadata: made anew for training, read for testing.

The 553 public test prompts ship with the package and are never among those made.
"""

from __future__ import annotations

import random
import re
from importlib import resources
from typing import Any

from marble.rewards.geneval.coco import COCO_CLASSES, COLORS

Line = dict[str, Any]
NUMBERS = {2: "two", 3: "three", 4: "four"}
PLACES = ("left of", "right of", "above", "below")
SHARES = {
    "single_object": 1,
    "two_object": 2,
    "counting": 4,
    "colors": 2,
    "position": 5,
    "color_attr": 4,
}
"""Kinds that models find hard come more often."""
PICTURES = ("a photo of", "a photo of", "a picture of", "a photograph of", "an image of")
UNCOUNTED = ("scissors", "skis")
"""Already plural."""


def test_lines() -> list[Line]:
    """The public test set: 553 prompts with their metadata."""
    text = (resources.files("marble.prompts") / "geneval_test.txt").read_text(encoding="utf-8")
    return [parse(prompt) for prompt in text.splitlines()]


def make(count: int, rng: random.Random) -> list[Line]:
    """`count` different prompts, none of the test set's."""
    taken = {line["prompt"] for line in test_lines()}
    made: list[Line] = []
    kinds, weights = list(SHARES), list(SHARES.values())
    while len(made) < count:
        line = _draw(rng.choices(kinds, weights)[0], rng)
        if line["prompt"] not in taken:
            taken.add(line["prompt"])
            made.append(line)
    return made


def _draw(kind: str, rng: random.Random) -> Line:
    first, second = rng.sample(COCO_CLASSES, 2)
    start = rng.choice(PICTURES)
    include: list[dict[str, Any]] = [{"class": first, "count": 1}]
    line: Line = {"tag": kind, "include": include}
    if kind == "single_object":
        said = _a(first)
    elif kind == "two_object":
        include.append({"class": second, "count": 1})
        said = f"{_a(first)} and {_a(second)}"
    elif kind == "counting":
        while first in UNCOUNTED:
            first = rng.choice(COCO_CLASSES)
        number = rng.choice(list(NUMBERS))
        include[:] = [{"class": first, "count": number}]
        line["exclude"] = [{"class": first, "count": number + 1}]
        said = f"{NUMBERS[number]} {plural(first)}"
    elif kind == "colors":
        first = _coloured(first, rng)
        color = rng.choice(COLORS)
        include[:] = [{"class": first, "count": 1, "color": color}]
        said = f"{_a(color)} {first}"
    elif kind == "position":
        place = rng.choice(PLACES)
        include.append({"class": second, "count": 1, "position": [place, 0]})
        said = f"{_a(second)} {place} {_a(first)}"
    else:
        first = _coloured(first, rng)
        second = _coloured(second, rng, besides=first)
        one, other = rng.sample(COLORS, 2)
        include[:] = [
            {"class": first, "count": 1, "color": one},
            {"class": second, "count": 1, "color": other},
        ]
        said = f"{_a(one)} {first} and {_a(other)} {second}"
    return {**line, "prompt": f"{start} {said}"}


def parse(prompt: str) -> Line:
    """A prompt in GenEval's own words → its metadata line."""
    said = prompt.removeprefix("a photo of ")
    numbers = {word: number for number, word in NUMBERS.items()}
    word, _, rest = said.partition(" ")
    if word in numbers:
        singular = {plural(name): name for name in COCO_CLASSES}
        name, number = singular[rest], numbers[word]
        line: Line = {"tag": "counting", "include": [{"class": name, "count": number}]}
        return {**line, "exclude": [{"class": name, "count": number + 1}], "prompt": prompt}
    for place in PLACES:
        thing, found, other = said.partition(f" {place} ")
        if found:
            include: list[dict[str, Any]] = [{"class": _bare(other), "count": 1}]
            include.append({"class": _bare(thing), "count": 1, "position": [place, 0]})
            return {"tag": "position", "include": include, "prompt": prompt}
    parts = [_thing(part) for part in said.split(" and ")]
    coloured = "color" in parts[0]
    tags = {(1, False): "single_object", (2, False): "two_object"}
    tags |= {(1, True): "colors", (2, True): "color_attr"}
    return {"tag": tags[len(parts), coloured], "include": parts, "prompt": prompt}


def plural(name: str) -> str:
    """As GenEval writes it: `wine glasses`, and also `benchs`."""
    return f"{name}es" if name.endswith("s") else f"{name}s"


def _thing(text: str) -> dict[str, Any]:
    name = _bare(text)
    color, _, rest = name.partition(" ")
    if color in COLORS and rest in COCO_CLASSES:
        return {"class": rest, "count": 1, "color": color}
    return {"class": name, "count": 1}


def _bare(text: str) -> str:
    return re.sub(r"^an? ", "", text)


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _coloured(name: str, rng: random.Random, besides: str = "") -> str:
    """A thing that may have any colour: no person, and no orange, which is one."""
    while name in ("person", "orange", besides):
        name = rng.choice(COCO_CLASSES)
    return name
