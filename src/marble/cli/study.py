"""`marble study`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import check_device, print_json, table_console
from marble.cli.options import Device, Json


def study(
    path: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study file, e.g. studies/paper.yaml.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Default: runs/study-NAME.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side.")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs to share the runs out to.")] = 1,
    device: Device = None,
    keep: Annotated[bool, typer.Option(help="Keep every run's checkpoints.")] = False,
    run: Annotated[
        bool, typer.Option(help="Run what is missing; --no-run: tables of what is there.")
    ] = True,
    page: Annotated[bool, typer.Option(help="Write the report page.")] = True,
    docs: Annotated[
        Path | None, typer.Option(help="Write the result into this page's block for the study.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run settings × methods × seeds and write one table and one page; goes on where it stopped.

    A run that fails is told and left out of the table; the others go on.

    Examples:

    - `marble study studies/smoke.yaml`

    - `marble study studies/paper.yaml --jobs 16 --device cuda --docs docs/studies.md`

    - `marble study studies/paper.yaml --no-run` (while it runs elsewhere)
    """
    from marble.errors import MarbleError
    from marble.study import load_study, run_study, study_table, write_tables
    from marble.study.docs import publish
    from marble.study.runner import Failure
    from marble.study.show import show
    from marble.training.metrics import plain

    device = check_device(device)
    plan = load_study(path)
    folder = out or Path("runs") / f"study-{plan.name}"

    def say(line: str) -> None:
        typer.echo(line, err=True)

    failures: list[Failure] = []
    if run:
        failures = run_study(plan, folder, jobs=jobs, gpus=gpus, device=device, keep=keep, say=say)
    elif not folder.is_dir():
        raise MarbleError(f"{folder}: no such folder; give the study's --out")
    table = study_table(plan, folder, failures)
    files = write_tables(table, folder)
    if page and table["settings"]:
        files.append(_page(plan, folder))
    if docs is not None:
        files += publish(table, docs, path.parent / "results")
    if as_json:
        print_json(plain(table))
    else:
        show(table, table_console())
        for file in files:
            typer.echo(file)
    if table["missing"] and run:
        raise MarbleError(
            f"{len(table['missing'])} of {table['runs']} runs are not finished, {len(failures)} "
            "failed (see log.txt in each); run the study again to go on"
        )


def _page(plan: object, folder: Path) -> Path:
    """The report page of the first finished run of each cell."""
    import marble.report
    from marble.study import Study
    from marble.study.runner import finished

    assert isinstance(plan, Study)
    first: dict[tuple[str, str], Path] = {}
    for cell in plan.cells:
        if finished(folder / cell.folder):
            first.setdefault((cell.setting, cell.name), folder / cell.folder)
    return marble.report.write(list(first.values()), folder / "report.html")
