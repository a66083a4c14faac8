"""`marble diagnose`"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import print_json, wrapped
from marble.cli.options import Json


def diagnose(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    as_json: Json = False,
) -> None:
    """Say why a reward does not rise, with the numbers behind it and what to change.

    Reads the run's logs and evaluations; loads no model.

    Examples:

    - `marble diagnose runs/mine`

    - `marble diagnose runs/mine --json`
    """
    import marble.diagnose

    found = marble.diagnose.diagnose(run)
    if as_json:
        print_json(found.record())
        return
    typer.echo(wrapped(found.headline))
    # Rewards in a row with the same cause and the same remedy share them.
    for (ailment, change), same in groupby(found.findings, lambda f: (f.ailment, f.change)):
        typer.echo("")
        findings = list(same)
        names = ", ".join(finding.reward for finding in findings if finding.reward)
        typer.echo(wrapped(f"{ailment} ({names})" if names else ailment, "", "  "))
        for finding in findings:
            typer.echo(wrapped(finding.said, "  ", "  "))
        typer.echo(wrapped(change, "  → ", "    "))
