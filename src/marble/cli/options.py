"""Arguments and options that several verbs take, each written once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli.common import split_overrides
from marble.cli.completion import recipe_words
from marble.errors import MarbleError
from marble.recipe.explain import known_paths

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that a run folder's recipe names, whoever wrote it."),
]
Prefer = Annotated[
    str | None,
    typer.Option(
        "--prefer",
        metavar="NAME=WEIGHT,…",
        help="Slider weights of a run of method steer; those not named are 1.",
    ),
]
RecipeWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe (default: studio) and changes to it.",
        autocompletion=recipe_words,
    ),
]


def preference(text: str | None) -> dict[str, float] | None:
    """`ocr=1.5,aesthetic=0.5` as a mapping."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = word.partition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise MarbleError(
                f"--prefer {word}: must be like ocr=1.5,aesthetic=0.5: a slider and its weight"
            )
        if name.strip() in found:
            raise MarbleError(f"--prefer {text}: {name.strip()} has two weights; give it one")
        found[name.strip()] = weight
    return found


def chosen(prefer: dict[str, float] | None) -> dict[str, Any]:
    """The preference as a part of `--json`; nothing where there is none."""
    return {} if prefer is None else {"prefer": prefer}


def told(label: str, prefer: dict[str, float] | None) -> str:
    """A policy's name and the slider weights it was asked for."""
    return ", ".join([label, *(f"{name} {weight:g}" for name, weight in (prefer or {}).items())])


def one_recipe(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The recipe named in `RecipeWords`, if one is, and the overrides."""
    plain, overrides = split_overrides(words or [])
    for word in plain:
        if "." in word and word in known_paths() and not Path(word).exists():
            raise MarbleError(f"{word}: a field of the recipe is set as {word}=VALUE")
    if len(plain) > 1:
        raise MarbleError(f"one recipe at a time; got {', '.join(plain)}")
    return (plain[0] if plain else None), overrides
