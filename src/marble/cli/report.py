"""`marble report`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="One run folder, or several to compare.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The page; default: report.html in the first run."),
    ] = None,
    watch: Annotated[bool, typer.Option(help="Write it anew while the run goes on.")] = False,
    every: Annotated[float, typer.Option(min=1, help="Seconds between looks with --watch.")] = 10,
) -> None:
    """Make one self-contained HTML page from run folders.

    Examples:

    - `marble report runs/mine`

    - `marble report runs/marble runs/uniform runs/weighted-sum -o compare.html`

    - `marble report runs/mine --watch`
    """
    import marble.report

    page = out or runs[0] / "report.html"
    if watch:
        marble.report.watch(runs, page, every)
    else:
        marble.report.write(runs, page)
    typer.echo(page)
