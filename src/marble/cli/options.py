"""Arguments and options that several verbs take, each written once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from marble.cli.common import split_overrides
from marble.cli.completion import recipe_words
from marble.errors import MarbleError

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


class RecipeCommand(TyperCommand):
    """A verb that takes `RecipeWords`: who writes `--steps 3` is told of train.steps=3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Of click, or of typer's copy of it, by version: the name is what they share.
            if type(error).__name__ != "NoSuchOption":
                raise
            option = str(getattr(error, "option_name", ""))
            near = _fields_called(option.lstrip("-").replace("-", "_"))
            if not near:
                raise
            raise MarbleError(
                f"{option}: no such option of `marble {self.name}`; a field of the recipe is set "
                f"as {' or '.join(f'{path}=VALUE' for path in near)}"
            ) from None


def _fields_called(name: str) -> list[str]:
    from marble.recipe import reference

    return [d.path for d in reference() if d.path.split(".")[-1] == name and "*" not in d.path]


def preference(text: str | None) -> dict[str, float] | None:
    """`ocr=2,aesthetic=0.5` as a mapping."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = word.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise MarbleError(
                f"--prefer {word}: must be like ocr=2,aesthetic=0.5: a slider and its weight"
            ) from None
    return found


def one_recipe(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The recipe named in `RecipeWords`, if one is, and the overrides."""
    plain, overrides = split_overrides(words or [])
    if len(plain) > 1:
        raise MarbleError(f"one recipe at a time; got {', '.join(plain)}")
    return (plain[0] if plain else None), overrides
