"""Runs side by side: the tables of `marble compare`, marked up for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marble.evaluation.compare import compare_table
from marble.evaluation.versus import Versus, sentences, versus
from marble.report.folder import Run
from marble.report.numbers import duration, figure, percent, sigma, signed


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, and whether it is ahead of every other run of its column, with
    paired intervals that exclude a tie."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[tuple[str, list[Cell]]]
    """(row label, cells)"""


@dataclass(frozen=True)
class Comparison:
    """Two tables and the sentences that sum them up."""

    scores: Table
    costs: Table
    said: list[str]


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
    trained = table["trained"]
    names = [*trained, *(n for n in table["metrics"] if n not in trained)]
    leads = {name: _leads(judged, [name]) for name in names}
    own = _leads(judged, trained)
    return Comparison(
        _scores(base + rows, names, trained, leads),
        _costs(rows, own),
        sentences(own, [label for _, label in judged]) if own else [],
    )


def _leads(judged: Sequence[tuple[Run, str]], names: list[str]) -> Versus | None:
    """Runs against each other on these scores, where one of them has the base's."""
    base = next((run.record.base for run, _ in judged if run.record.base), None)
    runs = [run.record.last for run, _ in judged]
    return None if base is None else versus(base, [run for run in runs if run], names)


def _clear(found: Versus | None, measure: str) -> int | None:
    """The run whose lead excludes a tie with every other; None where no run's does."""
    if found is None:
        return None
    lead = next(lead for lead in found.leads if lead.measure == measure)
    return lead.first if lead.leads and not lead.close else None


def _scores(
    rows: list[dict[str, Any]],
    names: list[str],
    trained: list[str],
    leads: dict[str, Versus | None],
) -> Table:
    first = len([row for row in rows if row["label"] == "base"])
    body = []
    for number, row in enumerate(rows):
        cells = [
            Cell(
                _text(row["scores"][n]["mean"], figure),
                _clear(leads[n], "mean gain") == number - first,
            )
            for n in names
        ]
        body.append((row["label"], [*cells, Cell(_text(row["composite"], signed))]))
    heads = [n if n in trained else f"{n} (held out)" for n in names]
    return Table([*heads, "composite"], body)


def _costs(rows: list[dict[str, Any]], own: Versus | None) -> Table:
    columns: list[tuple[str, list[Cell]]] = []
    for measure, key in (("mean gain", "mean_gain"), ("worst gain", "worst_gain")):
        best = _clear(own, measure)
        cells = [Cell(_gain(row.get(key)), best == i) for i, row in enumerate(rows)]
        columns.append((measure, cells))

    def column(title: str, values: list[float | None], form: Callable[[float], str]) -> None:
        columns.append((title, [Cell(_text(value, form)) for value in values]))

    column("better on all", [row.get("joint_domination") for row in rows], percent)
    column("worse on all", [row.get("joint_collapse") for row in rows], percent)
    column("hypervolume", [(row.get("hypervolume") or {}).get("value") for row in rows], figure)
    column("worst cos", [row["harmony"]["harmony"]["min"] for row in rows], signed)
    for kind, title in (
        ("harmony", "conflict"),
        ("harmony_heldout", "held-out conflict"),
        ("harmony_applied", "applied conflict"),
    ):
        column(title, [row["harmony"][kind]["conflict_rate"] for row in rows], percent)
    column("time", [row["seconds"] for row in rows], duration)
    # What no run measured has no column.
    kept = [(title, cells) for title, cells in columns if any(c.text != "–" for c in cells)]
    body = [(row["label"], [cells[i] for _, cells in kept]) for i, row in enumerate(rows)]
    return Table([title for title, _ in kept], body)


def _gain(gain: dict[str, Any] | None) -> str:
    """`+0.31 σ ± 0.05`."""
    if not gain or gain.get("mean") is None:
        return "–"
    half = "" if gain.get("lo") is None else f" ± {(gain['hi'] - gain['lo']) / 2:.2f}"
    return sigma(gain["mean"]) + half


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return form(math.nan if value is None else value)
