"""`marble bench`: measured ratios, each within one run."""

from __future__ import annotations

from typing import Annotated

import typer

from marble.cli.common import print_json

app = typer.Typer(help="Measure: every figure is a ratio within one run.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command("gradients")
def gradients(as_json: Json = False) -> None:
    """All K gradients in two backward passes, against one backward and against K of them.

    Example: `marble bench gradients --json`
    """
    from marble.jacobian.bench import bench_gradients

    _show(bench_gradients(), as_json)


@app.command("solver")
def solver(as_json: Json = False) -> None:
    """The exact min-norm solver: time and Frank–Wolfe gap by K, beside other solvers.

    Example: `marble bench solver --json`
    """
    from marble.harmonise.bench import bench_solver

    _show(bench_solver(), as_json)


def _show(result: dict, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    from rich.console import Console
    from rich.pretty import Pretty

    Console().print(Pretty(result, expand_all=True))
