"""`marble doctor`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from marble.cli.common import print_json, wrapped
from marble.cli.options import Json, RecipeWords, one_recipe
from marble.errors import MarbleError

INDENT = " " * 10


def doctor(
    words: RecipeWords = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Memory and time for this card instead of this machine, e.g. a100."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many of them; default: 1.")] = None,
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
    if gpus is not None and gpu is None:
        raise MarbleError(f"--gpus {gpus}: how many of which? Name the card too, e.g. --gpu a100")
    card = None if gpu is None else named_gpu(gpu)
    checks = examine(name, overrides, card, gpus or 1)
    missing = [check for check in checks if not check.ok]
    if as_json:
        records = [check.record() for check in checks]
        print_json({"recipe": name, "ready": not missing, "checks": records})
    else:
        for check in checks:
            _show(check)
        for note in notes(load_recipe(name, overrides)):
            typer.echo(wrapped(note, "note      ", INDENT))
        typer.echo("")
        if missing:
            _show_downloads(missing)
            listed = ", ".join(check.what for check in missing)
            typer.echo(wrapped(f"{name} is not ready; missing: {listed}", "", "  "))
        else:
            typer.echo(f"{name} is ready: marble train {' '.join([name, *overrides])}")
    if missing:
        raise typer.Exit(1)


def _show(check: Any) -> None:
    mark = "ok" if check.ok else "MISSING"
    typer.echo(wrapped(f"{check.what}: {check.found}", f"{mark:<8}  ", INDENT))
    if not check.ok and check.remedy:
        typer.echo(wrapped(check.remedy, INDENT + "→ ", INDENT + "  "))


def _show_downloads(missing: list[Any]) -> None:
    """Each command once and in one piece, so that the block can be copied into a shell."""
    commands = dict.fromkeys(command for check in missing for command in check.fetch)
    if commands:
        typer.echo("Downloads:\n")
        typer.echo("\n".join(commands))
        typer.echo("")
