"""Random prompts without end, and the fixed train and test files drawn from them.

`scripts/studio/prompts.py` writes the files under `marble/studio/prompts`.
"""

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np

from marble.errors import MarbleError
from marble.studio.world.grammar import (
    SOURCES,
    Prompt,
    facts,
    from_geneval_line,
    general_prompt,
    geneval_prompt,
    item,
    ocr_prompt,
    parse,
)
from marble.studio.world.heldout import any_held_out
from marble.studio.world.language import BOARDS, CLASSES, COLORABLE, COLORS, RELATIONS, STYLES
from marble.studio.world.words import HELD_OUT_WORDS, TRAIN_WORDS, made_up_word

# tag -> share among random prompts
TAGS: dict[str, float] = {
    "single_object": 0.14,
    "two_object": 0.18,
    "counting": 0.18,
    "colors": 0.16,
    "position": 0.18,
    "color_attr": 0.16,
}
# style -> colour words it cannot carry: it tones the whole picture, or has that colour itself
STYLE_CLASHES: dict[str, tuple[str, ...]] = {
    "vintage": COLORS,
    "pastel": COLORS,
    "minimal": ("white",),
    "snow": ("white",),
    "night": ("black", "blue"),
    "sunset": ("orange", "pink", "red"),
    "cheerful": ("yellow", "orange"),
}

# source -> split -> number of prompts in the file; GenEval's by tag. Where fewer exist (there
# are only so many classes to count), the file takes all of them.
SIZES: dict[str, dict[str, int]] = {
    "ocr": {"train": 300, "test": 96},
    "general": {"train": 600, "test": 96},
}
GENEVAL_SIZES: dict[str, dict[str, int]] = {
    "train": {
        "single_object": 40,
        "counting": 100,
        "colors": 180,
        "two_object": 308,
        "position": 307,
        "color_attr": 307,
    },
    "test": {
        "single_object": 16,
        "counting": 28,
        "colors": 36,
        "two_object": 59,
        "position": 59,
        "color_attr": 59,
    },
}
SPLIT_SEEDS = {"train": 20_260, "test": 20_261}


def random_prompt(source: str, rng: np.random.Generator, split: str = "train") -> Prompt:
    """A random prompt of a source.

    `split="train"` never holds a held-out combination (and half its sign words are made up);
    `split="test"` always holds at least one.
    """
    if source not in SOURCES or split not in SPLIT_SEEDS:
        raise MarbleError(f'no prompts "{source}" / "{split}"; sources: {", ".join(SOURCES)}')
    draw: Callable[[np.random.Generator, str], Prompt] = {
        "geneval": lambda r, _: _geneval(r, str(r.choice(list(TAGS), p=list(TAGS.values())))),
        "ocr": _ocr,
        "general": lambda r, _: _general(r),
    }[source]
    return _accepted(lambda: draw(rng, split), split)


def _accepted(draw: Callable[[], Prompt], split: str) -> Prompt:
    while True:
        prompt = draw()
        if any_held_out(facts(prompt)) == (split == "test"):
            return prompt


def _pick(rng: np.random.Generator, items: tuple[str, ...]) -> str:
    return items[int(rng.integers(len(items)))]


def _two(rng: np.random.Generator, items: tuple[str, ...]) -> tuple[str, str]:
    i, j = rng.choice(len(items), size=2, replace=False)
    return items[int(i)], items[int(j)]


def _geneval(rng: np.random.Generator, tag: str) -> Prompt:
    include: list[dict[str, Any]]
    if tag == "single_object":
        include = [item(_pick(rng, CLASSES))]
    elif tag == "counting":
        include = [item(_pick(rng, CLASSES), int(rng.integers(2, 5)))]
    elif tag == "colors":
        include = [item(_pick(rng, COLORABLE), 1, _pick(rng, COLORS))]
    elif tag == "color_attr":
        colors = _two(rng, COLORS)
        include = [item(c, 1, color) for c, color in zip(_two(rng, COLORABLE), colors)]
    else:
        include = [item(c) for c in _two(rng, CLASSES)]
        if tag == "position":
            include[1]["position"] = [_pick(rng, RELATIONS), 0]
    return geneval_prompt(tag, include)


def _ocr(rng: np.random.Generator, split: str, word: str | None = None) -> Prompt:
    if word is None and split == "test":
        word = _pick(rng, HELD_OUT_WORDS)
    elif word is None:
        word = made_up_word(rng) if rng.random() < 0.5 else _pick(rng, TRAIN_WORDS)
    board = "sign" if rng.random() < 0.55 else _pick(rng, BOARDS)
    return ocr_prompt(word, board, _pick(rng, COLORS) if rng.random() < 0.4 else None)


def _general(rng: np.random.Generator) -> Prompt:
    style = _pick(rng, STYLES)
    kind = rng.random()
    if kind < 0.40:
        include = [item(_pick(rng, CLASSES))]
    elif kind < 0.60:
        include = [item(_pick(rng, CLASSES), int(rng.integers(2, 4)))]
    elif kind < 0.80 and (
        colors := tuple(c for c in COLORS if c not in STYLE_CLASHES.get(style, ()))
    ):
        include = [item(_pick(rng, COLORABLE), 1, _pick(rng, colors))]
    else:
        include = [item(c) for c in _two(rng, CLASSES)]
    return general_prompt(include, style)


def build_split(source: str, split: str) -> list[Prompt]:
    """The prompts of a file, from a fixed seed; all different."""
    rng = np.random.default_rng([SPLIT_SEEDS[split], SOURCES.index(source)])
    if source == "ocr":
        words = TRAIN_WORDS if split == "train" else HELD_OUT_WORDS
        chosen = rng.permutation(len(words))[: SIZES["ocr"][split]]
        return [_ocr(rng, split, words[i]) for i in chosen]
    if source == "general":
        return _distinct(lambda: _general(rng), split, SIZES["general"][split])
    out: list[Prompt] = []
    for tag, size in GENEVAL_SIZES[split].items():
        out += _distinct(lambda tag=tag: _geneval(rng, tag), split, size)  # type: ignore[misc]
    return out


def _distinct(draw: Callable[[], Prompt], split: str, size: int) -> list[Prompt]:
    found: dict[str, Prompt] = {}
    for _ in range(60 * size):  # enough to meet every one of a small set
        prompt = draw()
        if any_held_out(facts(prompt)) == (split == "test"):
            found.setdefault(prompt["prompt"], prompt)
        if len(found) == size:
            break
    return list(found.values())


def file_of(source: str, split: str) -> str:
    """Path of a prompt file under `marble/studio/prompts`."""
    return f"{source}/{split}_metadata.jsonl" if source == "geneval" else f"{source}/{split}.txt"


def file_text(source: str, split: str) -> str:
    """What the prompt file holds: GenEval's metadata lines, or one prompt a line."""
    lines = []
    for prompt in build_split(source, split):
        if source == "geneval":
            line = {k: v for k, v in prompt["metadata"].items() if k != "source"}
            lines.append(json.dumps(line))
        else:
            lines.append(prompt["prompt"])
    return "\n".join(lines) + "\n"


def load_split(source: str, split: str) -> list[Prompt]:
    """The prompts of a shipped file, with metadata."""
    if source not in SOURCES or split not in SPLIT_SEEDS:
        raise MarbleError(f'no prompts "{source}" / "{split}"; sources: {", ".join(SOURCES)}')
    text = (files("marble.studio") / "prompts" / file_of(source, split)).read_text()
    if source == "geneval":
        return [from_geneval_line(json.loads(line)) for line in text.splitlines()]
    return [parse(line, source) for line in text.splitlines()]
