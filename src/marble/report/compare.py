"""Runs side by side: the tables of `marble compare`, marked up for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marble.evaluation.compare import compare_table
from marble.report.folder import Run
from marble.report.numbers import count, duration, figure, percent, sigma, signed


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[tuple[str, list[Cell]]]
    """(row label, cells)"""


@dataclass(frozen=True)
class Comparison:
    """Two tables and the sentence that sums them up."""

    scores: Table
    costs: Table
    leader: str


def comparison(runs: Sequence[Run], labels: Sequence[str]) -> Comparison | None:
    """Runs at their last evaluation, as `marble compare` has them; None where fewer than two
    have one."""
    judged = [(run, label) for run, label in zip(runs, labels) if run.trained]
    if len(judged) < 2:
        return None
    table = compare_table([run.record for run, _ in judged])
    rows = [row for row in table["rows"] if row["method"] is not None]
    for row, (_, label) in zip(rows, judged):
        row["label"] = label
    base = [{**row, "label": "base"} for row in table["rows"] if row["method"] is None]
    return Comparison(_scores(base + rows, table["metrics"]), _costs(rows), _leader(rows))


def _scores(rows: list[dict[str, Any]], names: list[str]) -> Table:
    values = [[row["scores"][n]["mean"] for n in names] + [row["composite"]] for row in rows]
    forms = [figure] * len(names) + [signed]
    return Table([*names, "composite"], _marked(rows, values, forms, [1] * len(forms)))


def _costs(rows: list[dict[str, Any]]) -> Table:
    values = []
    for row in rows:
        own, held, applied = (
            row["harmony"][kind] for kind in ("harmony", "harmony_heldout", "harmony_applied")
        )
        values.append(
            [
                (row.get("worst_gain") or {}).get("sigma"),
                row.get("joint_domination"),
                row.get("joint_collapse"),
                (row.get("hypervolume") or {}).get("value"),
                own["min"],
                own["conflict_rate"],
                held["conflict_rate"],
                applied["conflict_rate"],
                row["seconds"],
            ]
        )
    head = ["worst gain", "dominates", "collapses", "hypervolume", "worst cos", "conflict"]
    head += ["held-out conflict", "applied conflict", "time"]
    forms = [sigma, percent, percent, figure, signed, percent, percent, percent, duration]
    sense = [1, 1, -1, 1, 1, -1, -1, -1, 0]
    # What no run measured has no column.
    kept = [i for i in range(len(head)) if any(row[i] is not None for row in values)]
    values = [[row[i] for i in kept] for row in values]
    return Table(
        [head[i] for i in kept],
        _marked(rows, values, [forms[i] for i in kept], [sense[i] for i in kept]),
    )


def _leader(rows: list[dict[str, Any]]) -> str:
    """Which run comes first on the composite, and how its worst reward fares."""
    first = max(rows, key=lambda row: row["composite"])
    text = f"Of {count(len(rows))} runs, {first['label']} has the best composite"
    worst = [(r["worst_gain"]["sigma"], r["label"]) for r in rows if r.get("worst_gain")]
    if not first.get("worst_gain"):
        return text + "."
    own, (most, safest) = first["worst_gain"], max(worst)
    if safest == first["label"]:
        return f"{text} and the best worst reward ({own['reward']}, {sigma(most)})."
    return (
        f"{text}; its worst reward, {own['reward']}, stands at {sigma(own['sigma'])}, "
        f"while {safest} keeps every reward at {sigma(most)} or better."
    )


def _marked(
    rows: list[dict[str, Any]],
    values: list[list[float | None]],
    forms: Sequence[Any],
    sense: Sequence[int],
) -> list[tuple[str, list[Cell]]]:
    """Cells as text; a column's one best is marked (sense 1: larger, −1: smaller, 0: none)."""
    table = np.array([[math.nan if v is None else v for v in row] for row in values])
    best = []
    for column, way in zip(table.T, sense):
        known = column[np.isfinite(column)]
        first = (known.max() if way > 0 else known.min()) if way and len(known) > 1 else math.nan
        best.append(first if np.sum(known == first) == 1 else math.nan)  # a tie has no best
    return [
        (row["label"], [Cell(form(v), bool(v == b)) for v, form, b in zip(line, forms, best)])
        for row, line in zip(rows, table)
    ]
