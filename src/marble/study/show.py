"""A study's table in a terminal: the measures of every cell, and what the seeds agree on."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from marble.study.write import cell, order, sortable

SHOWN = ("worst gain", "mean gain", "composite")
ABOUT = (
    "Gains: paired with the base on held-out prompts, in σ of the base's scores; ± half of the "
    "95 % interval over seeds. Composite: mean z-score of all scores, among the rows above."
)


def show(table: dict[str, Any], console: Console) -> None:
    """One table per setting, best worst gain first, then the sentences of the Markdown page."""
    for part in table["settings"]:
        rows = [row for row in part["rows"] if "values" in row]
        rows.sort(key=lambda row: -sortable(row["values"]["worst gain"]["mean"]))
        title = f"{table['study']}: {part['setting']}" if part["setting"] else table["study"]
        shown = Table(title=title, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
        shown.add_column("", no_wrap=True)
        shown.add_column("seeds", justify="right")
        for name in SHOWN:
            shown.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            values = [cell(row["values"].get(name), 2) for name in SHOWN]
            shown.add_row(row["name"], str(row["seeds"]), *values)
        console.print(shown)
        for line in order(part):
            console.print(line.strip().replace("`", ""), highlight=False, markup=False)
        console.print()
    if table["settings"]:
        console.print(ABOUT, highlight=False, markup=False)
    done = table["runs"] - len(table["missing"])
    console.print(f"{done} of {table['runs']} runs are finished.", highlight=False)
