"""`marble doctor`"""

from __future__ import annotations

from typing import Annotated

import typer

from marble.cli.common import print_json


def doctor(
    recipe: Annotated[str, typer.Argument(help="The recipe to check.")] = "studio",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say whether this machine can run a recipe, and what is missing.

    Examples:

    - `marble doctor`

    - `marble doctor sd35m-5rewards-1gpu`
    """
    from marble.doctor import examine

    checks = examine(recipe)
    if as_json:
        print_json(
            {
                "recipe": recipe,
                "ready": all(c.ok for c in checks),
                "checks": [c.record() for c in checks],
            }
        )
    else:
        for check in checks:
            typer.echo(f"{'ok     ' if check.ok else 'MISSING'} {check.what}: {check.found}")
            if not check.ok and check.remedy:
                typer.echo(f"        → {check.remedy}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
