"""`marble diagnose`"""

from __future__ import annotations

import shutil
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import print_json
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
    typer.echo(_wrapped("", found.headline, ""))
    # Rewards in a row with the same cause and the same remedy share them.
    for (ailment, change), same in groupby(found.findings, lambda f: (f.ailment, f.change)):
        typer.echo("")
        findings = list(same)
        names = ", ".join(finding.reward for finding in findings if finding.reward)
        typer.echo(_wrapped("", f"{ailment} ({names})" if names else ailment, "  "))
        for finding in findings:
            typer.echo(_wrapped("  ", finding.said, "  "))
        typer.echo(_wrapped("  → ", change, "    "))


def _wrapped(first: str, text: str, rest: str) -> str:
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
