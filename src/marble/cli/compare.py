"""`marble compare`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marble.cli.common import print_json, stdout_kept, table_console
from marble.cli.options import Json

Row = dict[str, Any]
LEGEND = (
    "▲ ▼ above or below the base, paired 95 % interval clear of 0. Mean and worst gain: over the "
    "rewards trained on, in σ of the base's scores. {composite}Conflict: share of measured steps "
    "whose update opposes some reward's gradient; other half: the gradient on samples it was not "
    "solved on; as applied: the optimiser's step."
)
COMPOSITE = "Composite: mean z-score of all scores, among these columns. "


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's Table 1; takes `eval --json` files too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Runs side by side: every score, who is ahead and whether that is more than noise.

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
    for block in _blocks(result["rows"], console):
        console.print(_table(result, block))
        console.print()
    for sentence in (result.get("versus") or {}).get("said", []):
        console.print(sentence, highlight=False, markup=False)
    legend = LEGEND.format(composite=COMPOSITE if len(result["rows"]) > 2 else "")
    console.print(legend, style="dim", highlight=False, markup=False)


def _blocks(rows: list[Row], console: Console) -> list[list[Row]]:
    """Columns side by side as far as the terminal goes; the base leads every block."""
    base = [row for row in rows if row["method"] is None]
    others = [row for row in rows if row["method"] is not None]
    room = console.width - 24 - 9 * len(base)
    blocks: list[list[Row]] = []
    left = 0
    for row in others:
        need = max(12, min(24, len(row["name"]))) + 2
        if left < need:
            blocks.append([])
            left = room
        blocks[-1].append(row)
        left -= need
    return [[*base, *block] for block in blocks]


def _table(result: dict[str, Any], rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.add_column("held-out prompts", no_wrap=True)
    for row in rows:
        table.add_column(row["name"], justify="right", overflow="fold", max_width=24)

    def line(title: str, values: list[str]) -> None:
        if any(value != "–" for value in values):
            table.add_row(title, *values)

    trained = result["trained"]
    for title, names in (
        ("trained on", trained),
        ("not trained on", [n for n in result["metrics"] if n not in trained]),
    ):
        if names:
            table.add_row(Text(title, style="dim"))
        for name in names:
            line(f"  {name}", [_score(row, name) for row in rows])
    table.add_row(Text("over the base", style="dim"))
    line("  mean gain, σ", [_gain(row.get("mean_gain")) for row in rows])
    line("  worst gain, σ", [_gain(row.get("worst_gain")) for row in rows])
    line("    of", [(row.get("worst_gain") or {}).get("reward", "–") for row in rows])
    line("  better on all", [_number(row.get("joint_domination"), ".0%") for row in rows])
    line("  worse on all", [_number(row.get("joint_collapse"), ".0%") for row in rows])
    volumes = [(row.get("hypervolume") or {}).get("value") for row in rows]
    line("  hypervolume, σ", [_number(volume, ".3g") for volume in volumes])
    if len(result["rows"]) > 2:  # of two rows it is ±1, whatever they are
        line("  composite", [_number(row["composite"], "+.2f") for row in rows])
    table.add_row(Text("the updates", style="dim"))
    line("  worst cosine", [_harmony(row, "harmony", "min", "+.2f") for row in rows])
    for kind, title in (
        ("harmony", "  conflict"),
        ("harmony_heldout", "    other half"),
        ("harmony_applied", "    as applied"),
    ):
        line(title, [_harmony(row, kind, "conflict_rate", ".0%") for row in rows])
    line("  minutes", [_number(_minutes(row), ".1f") for row in rows])
    return table


def _show_paper(laid_out: dict[str, Any]) -> None:
    table = Table(title="as the paper's Table 1", box=None, padding=(0, 1))
    table.add_column("score", no_wrap=True)
    for row in laid_out["rows"]:
        table.add_column(row["name"], justify="right", overflow="fold", max_width=24)
    for name in laid_out["columns"]:
        values = [_number(row["values"][name], ".3f") for row in laid_out["rows"]]
        table.add_row(name, *values)
    table.add_row("composite", *(_number(row["composite"], "+.3f") for row in laid_out["rows"]))
    table_console().print(table)


def _score(row: Row, name: str) -> str:
    gain = (row.get("gains") or {}).get(name) or {}
    mark = ""
    if gain.get("lo") is not None and row["method"] is not None:
        mark = "▲ " if gain["lo"] > 0 else "▼ " if gain["hi"] < 0 else ""
    return mark + _number(row["scores"][name]["mean"], ".3f")


def _gain(gain: dict[str, Any] | None) -> str:
    if not gain or gain.get("mean") is None:
        return "–"
    return f"{gain['mean']:+.2f} ± {(gain['hi'] - gain['lo']) / 2:.2f}"


def _harmony(row: Row, kind: str, part: str, form: str) -> str:
    return _number((row.get("harmony") or {}).get(kind, {}).get(part), form)


def _minutes(row: Row) -> float | None:
    return row["seconds"] / 60 if "seconds" in row else None


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or value != value else format(value, form)
