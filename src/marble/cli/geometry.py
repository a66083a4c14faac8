"""`marble geometry`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import check_device, check_file, print_json, stdout_kept, table_console
from marble.cli.options import Device, Json, Trust
from marble.errors import MarbleError


def geometry(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a checkpoint.")],
    base: Annotated[bool, typer.Option("--base", help="Before the run's first step.")] = False,
    batches: Annotated[int, typer.Option(min=4, help="Independent batches to draw.")] = 24,
    target: Annotated[
        str | None, typer.Option(help="full or reward; default: the recipe's balance.target.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the batches; not the run's.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="JSON file for all numbers.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Explain a rule: how much of each reward's gradient is signal, and what the rule makes of it.

    Draws batches as the run's training did, takes every reward's gradient on each, and steps
    nowhere. See docs/geometry.md for what the numbers mean.

    Examples:

    - `marble geometry runs/mine`

    - `marble geometry runs/mine --base --batches 48 --out base.json`

    - `marble geometry runs/mine --target reward --json`
    """
    from rich.console import Console
    from rich.progress import Progress

    from marble.evaluation.reading import run_folder
    from marble.geometry.check import warning
    from marble.geometry.run import measure_run
    from marble.geometry.table import show
    from marble.recipe import load_recipe
    from marble.recipe.trust import require_trust
    from marble.training.folder import write_json

    if target not in (None, "full", "reward"):
        raise MarbleError(f"--target {target}: must be full or reward")
    device = check_device(device)
    run = run_folder(run)
    require_trust(load_recipe(run, trust=trust), run, [], trust)
    check_file(out)
    console = Console(stderr=True)
    quiet = not console.is_terminal  # it would leave an empty line
    with (
        stdout_kept(as_json),
        Progress(console=console, transient=True, disable=quiet) as shown,
    ):
        bar = shown.add_task("batches", total=batches)
        record = measure_run(
            run,
            base=base,
            batches=batches,
            target=target,  # type: ignore[arg-type]
            seed=seed,
            device=device,
            trust=trust,
            progress=lambda done: shown.update(bar, completed=done),
        )
    for name, problem in record["passed_over"].items():
        said = f"marble: {name} is passed over ({problem}); measured at step {record['step']}"
        typer.echo(said, err=True)
    doubt = warning(record["scores"])
    if doubt:
        typer.echo(f"marble: {doubt}", err=True)
    if out is not None:
        write_json(out, record)
    if as_json:
        print_json(record)
    else:
        show(record, table_console())
        if out is not None:
            typer.echo(out)
