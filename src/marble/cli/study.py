"""`marble study`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import print_json


def study(
    path: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study file, e.g. studies/paper.yaml.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Default: runs/study-NAME.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep every run's checkpoints.")] = False,
    page: Annotated[bool, typer.Option(help="Write the report page.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run methods × settings × seeds and write one table and one page; goes on where it stopped.

    Examples:

    - `marble study studies/paper.yaml --jobs 8 --device cuda`

    - `marble study studies/smoke.yaml`
    """
    from marble.study import load_study, run_study, study_table, write_tables
    from marble.training.metrics import plain

    plan = load_study(path)
    folder = out or Path("runs") / f"study-{plan.name}"
    run_study(
        plan,
        folder,
        jobs=jobs,
        device=device,
        keep=keep,
        say=lambda line: typer.echo(line, err=True),
    )
    table = study_table(plan, folder)
    files: list[Path] = [*write_tables(table, folder)]
    if page:
        import marble.report

        first = {cell.name: cell for cell in reversed(plan.cells)}
        runs = [folder / first[name].folder for name in plan.names]
        files.append(marble.report.write(runs, folder / "report.html"))
    if as_json:
        print_json(plain(table))
    else:
        for file in files:
            typer.echo(file)
