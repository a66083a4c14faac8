"""`marble compare`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from marble.cli.common import print_json, stdout_kept, table_console
from marble.cli.options import Json


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's Table 1; takes `eval --json` files too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """One table for several runs: every score, composite, joint rates, harmony, time.

    Examples:

    - `marble compare runs/marble runs/uniform runs/weighted-sum`

    - `marble compare runs/* --json`

    - `marble compare --paper base.json runs/marble runs/weighted-sum`
    """
    from marble.evaluation import compare_table, paper_table, read_evaluations
    from marble.training.metrics import plain

    if paper:
        laid_out = paper_table(read_evaluations(runs))
        if as_json:
            print_json(plain(laid_out))
        else:
            _show_paper(laid_out)
        return
    with stdout_kept(as_json):
        result = compare_table(runs)
    if as_json:
        print_json(plain(result))
        return
    console = table_console()
    scores = Table(title="scores on held-out prompts", box=None, padding=(0, 1))
    scores.add_column("run")
    for name in (*result["metrics"], "composite"):
        scores.add_column(name, justify="right")
    for row in result["rows"]:
        cells = [_cell(row, name) for name in result["metrics"]]
        scores.add_row(row["name"], *cells, _number(row["composite"], "+.3f"))
    console.print(scores)
    how = Table(title="how they got there", box=None, padding=(0, 1))
    how.add_column("run")
    headings = ("worst gain", "dominates", "collapses", "hypervolume", "min cos", "conflict")
    for heading in (*headings, "held-out conflict", "applied conflict", "minutes"):
        how.add_column(heading, justify="right")
    for row in result["rows"]:
        if row["method"] is None:
            continue
        harmony = row["harmony"]
        worst = row.get("worst_gain")
        volume = row.get("hypervolume")
        how.add_row(
            row["name"],
            "–" if worst is None else f"{worst['reward']} {worst['sigma']:+.2f} σ",
            _number(row.get("joint_domination"), ".0%"),
            _number(row.get("joint_collapse"), ".0%"),
            _number(None if volume is None else volume["value"], ".3g"),
            _number(harmony["harmony"]["min"], "+.3f"),
            _number(harmony["harmony"]["conflict_rate"], ".0%"),
            _number(harmony["harmony_heldout"]["conflict_rate"], ".0%"),
            _number(harmony["harmony_applied"]["conflict_rate"], ".0%"),
            _number(row["seconds"] / 60, ".1f"),
        )
    console.print(how)


def _show_paper(laid_out: dict[str, Any]) -> None:
    table = Table(title="as the paper's Table 1", box=None, padding=(0, 1))
    table.add_column("run")
    for name in (*laid_out["columns"], "composite"):
        table.add_column(name, justify="right")
    for row in laid_out["rows"]:
        values = [_number(row["values"][name], ".3f") for name in laid_out["columns"]]
        table.add_row(row["name"], *values, _number(row["composite"], "+.3f"))
    table_console().print(table)


def _cell(row: dict[str, Any], name: str) -> str:
    return _number(row["scores"][name]["mean"], ".3f")


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or value != value else format(value, form)
