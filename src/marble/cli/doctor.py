"""`marble doctor`"""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated, Any

import typer

from marble.cli.common import print_json
from marble.cli.options import Json, RecipeWords, one_recipe

INDENT = " " * 10


def doctor(
    words: RecipeWords = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Memory and time for this card instead of this machine, e.g. a100."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
    as_json: Json = False,
) -> None:
    """Say whether this machine can run a recipe, what is missing, and how to get it.

    Loads nothing and downloads nothing. The exit status is 1 when something is missing.

    Examples:

    - `marble doctor`

    - `marble doctor sd35m-5rewards-1gpu data.sources.ocr.path=prompts/ocr`

    - `marble doctor sd35m-5rewards --gpu a100 --gpus 4`: would it fit, and how long would it take?
    """
    from marble.doctor import examine
    from marble.duration import named_gpu
    from marble.recipe import load_recipe
    from marble.recipe.notes import notes

    recipe, overrides = one_recipe(words)
    name = recipe or "studio"
    card = None if gpu is None else named_gpu(gpu)
    checks = examine(name, overrides, card, gpus)
    missing = [check for check in checks if not check.ok]
    if as_json:
        records = [check.record() for check in checks]
        print_json({"recipe": name, "ready": not missing, "checks": records})
    else:
        for check in checks:
            _show(check)
        for note in notes(load_recipe(name, overrides)):
            typer.echo(_wrapped("note      ", note))
        typer.echo("")
        if missing:
            _show_downloads(missing)
            listed = ", ".join(check.what for check in missing)
            typer.echo(_wrapped("", f"{name} is not ready; missing: {listed}", "  "))
        else:
            typer.echo(f"{name} is ready: marble train {' '.join([name, *overrides])}")
    if missing:
        raise typer.Exit(1)


def _show(check: Any) -> None:
    mark = "ok" if check.ok else "MISSING"
    typer.echo(_wrapped(f"{mark:<8}  ", f"{check.what}: {check.found}"))
    if not check.ok and check.remedy:
        typer.echo(_wrapped(INDENT + "→ ", check.remedy, INDENT + "  "))


def _show_downloads(missing: list[Any]) -> None:
    """Each command once and in one piece, so that the block can be copied into a shell."""
    commands = dict.fromkeys(command for check in missing for command in check.fetch)
    if commands:
        typer.echo("Downloads:\n")
        typer.echo("\n".join(commands))
        typer.echo("")


def _wrapped(first: str, text: str, rest: str = INDENT) -> str:
    return textwrap.fill(
        text,
        min(100, shutil.get_terminal_size((100, 24)).columns),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
