"""Arguments and options that several verbs take, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

from marble.cli.common import split_overrides
from marble.cli.completion import recipe_words
from marble.errors import MarbleError

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that a run folder's recipe names, whoever wrote it."),
]
RecipeWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe (default: studio) and changes to it.",
        autocompletion=recipe_words,
    ),
]


def one_recipe(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The recipe named in `RecipeWords`, if one is, and the overrides."""
    plain, overrides = split_overrides(words or [])
    if len(plain) > 1:
        raise MarbleError(f"one recipe at a time; got {', '.join(plain)}")
    return (plain[0] if plain else None), overrides
