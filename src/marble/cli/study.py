"""`marble study`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import check_device, print_json, table_console
from marble.cli.options import Device, Json


def study(
    paths: Annotated[
        list[Path], typer.Argument(metavar="STUDY...", help="Study files, e.g. studies/paper.yaml.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Of one study; default: runs/study-NAME.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side.")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs to share the runs out to.")] = 1,
    device: Device = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after so long; running ones save, to be gone on with."),
    ] = None,
    elsewhere: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="RUNS.JSON", help="Runs made elsewhere; may be repeated."),
    ] = None,
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

    A run that fails is told and left out of the table; the others go on. Runs of several studies
    wait in one queue; on a GPU they share it by CUDA's multi-process service, where there is one.

    Examples:

    - `marble study studies/smoke.yaml`

    - `marble study studies/paper.yaml --jobs 16 --device cuda --docs docs/studies.md`

    - `marble study studies/long.yaml studies/stress.yaml --jobs 24 --minutes 55`

    - `marble study studies/paper.yaml --no-run` (while it runs)

    - `marble study studies/paper.yaml --with other/runs.json` (go on with another machine's)
    """
    from marble.errors import MarbleError
    from marble.study import finished_runs, load_study, run_studies, table_of, write_tables
    from marble.study.docs import publish
    from marble.study.elsewhere import FILE, load, store
    from marble.study.runner import Failure, finished
    from marble.study.show import show
    from marble.training.metrics import plain

    device = check_device(device)
    if len(paths) > 1 and out is not None:
        raise MarbleError("--out: is for one study; several have runs/study-NAME each")
    plans = [load_study(path) for path in paths]
    names = [plan.name for plan in plans]
    if len(set(names)) < len(names):
        raise MarbleError(f"two study files have the same name: {', '.join(names)}")
    folders = [out or Path("runs") / f"study-{name}" for name in names]
    known = load(plans, elsewhere or [])

    def say(line: str) -> None:
        typer.echo(line, err=True)

    failures: list[list[Failure]] = [[] for _ in plans]
    if run:
        failures = run_studies(
            list(zip(plans, folders)),
            jobs=jobs,
            gpus=gpus,
            device=device,
            keep=keep,
            minutes=minutes,
            elsewhere=known,
            say=say,
        )
    tables, unfinished = [], []
    for path, plan, folder, failed in zip(paths, plans, folders, failures):
        if not folder.is_dir() and not known[plan.name]:
            raise MarbleError(f"{folder}: no such folder; give the study's --out")
        folder.mkdir(parents=True, exist_ok=True)
        runs = finished_runs(plan, folder, known[plan.name])
        table = table_of(plan, runs, failed)
        tables.append(table)
        files = [*write_tables(table, folder), store(plan, runs, folder / FILE)]
        if page and any(finished(folder / cell.folder) for cell in plan.cells):
            files.append(_page(plan, folder))
        if docs is not None:
            results = path.parent / "results"
            files += publish(table, docs, results)
            files.append(store(plan, runs, results / f"{plan.name}.{FILE}"))
        if not as_json:
            show(table, table_console())
            for file in files:
                typer.echo(file)
        if table["missing"] and run:
            which = "" if len(plans) == 1 else f"{plan.name}: "
            unfinished.append(
                f"{which}{len(table['missing'])} of {table['runs']} runs are not finished, "
                f"{len(failed)} failed (see log.txt in each)"
            )
    if as_json:
        print_json(plain(tables[0] if len(tables) == 1 else tables))
    if unfinished:
        raise MarbleError(f"{'; '.join(unfinished)}; run the study again to go on")


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
