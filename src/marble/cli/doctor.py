"""`marble doctor`"""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from marble.cli.common import print_json, split_overrides
from marble.errors import MarbleError

INDENT = " " * 10


def doctor(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...", help="The recipe to check (default: studio)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say whether this machine can run a recipe, what is missing, and how to get it.

    Loads nothing and downloads nothing. The exit status is 1 when something is missing.

    Examples:

    - `marble doctor`

    - `marble doctor sd35m-5rewards-1gpu data.sources.ocr.path=prompts/ocr`
    """
    from marble.doctor import examine

    plain, overrides = split_overrides(words or [])
    if len(plain) > 1:
        raise MarbleError(f"one recipe at a time; got {', '.join(plain)}")
    name = plain[0] if plain else "studio"
    checks = examine(name, overrides)
    missing = [check for check in checks if not check.ok]
    if as_json:
        records = [check.record() for check in checks]
        print_json({"recipe": name, "ready": not missing, "checks": records})
    else:
        for check in checks:
            _show(check)
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
        100,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
