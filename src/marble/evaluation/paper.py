"""Evaluations laid out as the paper's Table 1, with its composite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import MarbleError
from marble.evaluation.measures import composite
from marble.evaluation.reading import evaluation_record, numbers, parse_json
from marble.evaluation.runs import read_run, unjudged

#: Column → the scores it may come from, the first one there. Papers report strict GenEval.
COLUMNS: dict[str, tuple[str, ...]] = {
    "GenEval": ("geneval-strict", "geneval", "studio-geneval"),
    "OCR": ("ocr",),
    "Pick": ("pickscore", "studio-pick"),
    "CLIP": ("clipscore", "studio-clip"),
    "HPS": ("hpsv2",),
    "Aes": ("aesthetic", "studio-aesthetic"),
    "ImgRwd": ("imagereward",),
    "UniRwd": ("unifiedreward",),
}


def paper_table(evaluations: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """`columns` and `rows` of name, values (null where not measured) and composite.

    `evaluations` are (name, record) as `marble eval --json` prints them. The composite is the mean
    over the columns that every row has of their z-scores over the rows: it ranks these rows and
    means nothing beyond them.
    """
    if not evaluations:
        raise MarbleError("name at least one run or evaluation")
    rows: list[dict[str, Any]] = [
        {"name": name, "values": values_of(record)} for name, record in evaluations
    ]
    table = np.array(
        [[np.nan if (v := row["values"][c]) is None else v for c in COLUMNS] for row in rows]
    )
    shared = np.isfinite(table).all(axis=0)
    if shared.any() and len(rows) > 1:
        for row, value in zip(rows, composite(table[:, shared])):
            row["composite"] = float(value)
    for row in rows:
        row.setdefault("composite", None)
    return {
        "columns": list(COLUMNS),
        "composite_over": [c for c, both in zip(COLUMNS, shared) if both],
        "rows": rows,
    }


def values_of(record: dict[str, Any]) -> dict[str, float | None]:
    """Column → value of one evaluation; GenEval's is the official mean over its tags."""
    scores = {**(record.get("heldout") or {}), **(record.get("rewards") or {})}
    tags = record.get("geneval") or {}
    values: dict[str, float | None] = {}
    for column, names in COLUMNS.items():
        name = next((n for n in names if (scores.get(n) or {}).get("mean") is not None), None)
        official = numbers(tags.get(name)).get("mean_over_tags")
        values[column] = None if name is None else scores[name]["mean"]
        if official is not None:
            values[column] = official
    return values


def read_evaluations(paths: Sequence[str | Path]) -> list[tuple[str, dict[str, Any]]]:
    """(name, record) of run folders (the base once, each run's last) and `eval --json` files."""
    found: list[tuple[str, dict[str, Any]]] = []
    base: dict[str, Any] | None = None
    for path in map(Path, paths):
        if path.is_dir():
            run = read_run(path)
            if run.last is None:
                raise unjudged(path)
            base = base or (run.base.record if run.base else None)
            found.append((run.name, run.last.record))
        else:
            record = _read_json(path)
            found.append((str(record.get("model", path.stem)), record))
    return [("base", base), *found] if base else found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not JSON"
        raise MarbleError(
            f"{path}: neither a run folder nor a JSON file ({why}); give what `marble train` or "
            "`marble eval … --json` wrote"
        ) from None
    if not isinstance(record, dict) or "rewards" not in record:
        raise MarbleError(f"{path}: not an evaluation; make one with marble eval … --json > FILE")
    return evaluation_record(record)
