"""Runs side by side: the tables of `marble compare`, from the same evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marble.report.folder import Run
from marble.report.numbers import duration, figure, mean, percent, sigma, signed
from marble.report.verdict import Verdict


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


def scores_table(
    runs: Sequence[Run], verdicts: Sequence[Verdict], shown: Sequence[str]
) -> Table | None:
    """Every reward's held-out mean by run, and the composite of the column z-scores.

    composite(row) = mean over rewards of (value − column mean) / column std, over the rows shown.
    """
    names = list(dict.fromkeys(n for r in runs for n in (*r.rewards, *r.heldout)))
    labels, values = [], []
    base = next((r.base for r in runs if r.base), None)
    if base is not None:
        labels.append("base")
        values.append([base.scores[n].mean if n in base.scores else math.nan for n in names])
    for label, verdict in zip(shown, verdicts):
        if verdict.chosen is not None:
            scores = verdict.chosen.evaluation.scores
            labels.append(label)
            values.append([scores[n].mean if n in scores else math.nan for n in names])
    if len(labels) < 2:
        return None
    table = np.array(values)
    composite = composites(table)
    full = np.column_stack([table, composite])
    return Table(
        head=[*names, "composite"],
        rows=_rows(labels, full, [figure] * len(names) + [signed], [1] * (len(names) + 1)),
    )


def composites(values: np.ndarray) -> np.ndarray:
    """Mean of column z-scores by row; a column without spread says nothing and is left out."""
    known = np.isfinite(values).all(axis=0)
    columns = values[:, known]
    spread = columns.std(axis=0)
    useful = spread > 1e-12
    if not useful.any():
        return np.zeros(len(values))
    z = (columns[:, useful] - columns[:, useful].mean(axis=0)) / spread[useful]
    return np.asarray(z.mean(axis=1))


def costs_table(runs: Sequence[Run], verdicts: Sequence[Verdict], shown: Sequence[str]) -> Table:
    """Worst gain, harmony, conflict rate, distance and time by run."""
    rows = []
    for run, verdict in zip(runs, verdicts):
        worst = verdict.chosen.worst if verdict.chosen else None
        low = run.metrics.get("harmony/min")
        held = run.metrics.get("harmony_heldout/min")
        kl = run.metrics.get("kl")
        kl = kl[np.isfinite(kl)]
        rows.append(
            [
                worst.z if worst else math.nan,
                mean(low),
                _conflict(low),
                _conflict(held),
                mean(kl[-10:]) if len(kl) else math.nan,
                seconds(run),
            ]
        )
    forms = [sigma, signed, percent, percent, figure, duration]
    head = ["worst gain", "mean of worst cos", "conflict rate", "conflict, held-out batches"]
    head += ["KL at the end", "time"]
    table = np.array(rows, dtype=np.float64)
    return Table(head, _rows(shown, table, forms, [1, 1, -1, -1, 0, 0]))


def seconds(run: Run) -> float:
    """Wall time of a run: as run.json says, else the sum of the logged phases."""
    told = run.state.get("seconds")
    if isinstance(told, int | float):
        return float(told)
    logged = [
        np.nansum(run.metrics.columns[k]) for k in run.metrics.columns if k.startswith("time/")
    ]
    return float(sum(logged)) if logged else math.nan


def _rows(
    labels: Sequence[str], values: np.ndarray, forms: Sequence[Any], sense: Sequence[int]
) -> list[tuple[str, list[Cell]]]:
    """Cells as text; the best of each column marked (sense 1: larger, −1: smaller, 0: none)."""
    best = []
    for column, way in zip(values.T, sense):
        known = column[np.isfinite(column)]
        clear = way and len(known) > 1 and np.ptp(known) > 0
        best.append((known.max() if way > 0 else known.min()) if clear else math.nan)
    return [
        (label, [Cell(form(v), bool(v == b)) for v, form, b in zip(row, forms, best)])
        for label, row in zip(labels, values)
    ]


def _conflict(low: np.ndarray) -> float:
    low = low[np.isfinite(low)]
    return float(np.mean(low < 0)) if len(low) else math.nan
