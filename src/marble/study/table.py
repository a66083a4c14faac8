"""A study's runs as one table: means over seeds with intervals, ranks and their stability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from marble.errors import MarbleError
from marble.evaluation import composite
from marble.study.across import across
from marble.study.elsewhere import Found, Runs
from marble.study.measure import PICTURES, Measured, device_of, measure
from marble.study.plan import Cell, Study
from marble.study.runner import Failure, finished
from marble.study.specialists import LEAST, least, shares
from marble.study.statistics import agreement, over_seeds, paired

RANKED = ("worst gain", "composite")
POOLED = ("worst gain", "mean gain")


def finished_runs(study: Study, out: Path, elsewhere: Runs = MappingProxyType({})) -> Runs:
    """What was measured of every finished run, here or elsewhere, in the order of the study."""
    found: dict[Cell, Found] = {}
    for cell in study.cells:
        folder = out / cell.folder
        if finished(folder):
            found[cell] = Found(measure(folder, study.judge), device_of(folder))
        elif cell in elsewhere:
            found[cell] = elsewhere[cell]
    return found


def study_table(study: Study, out: Path, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """`table_of` the runs in a study's folder."""
    return table_of(study, finished_runs(study, out), failures)


def table_of(study: Study, found: Runs, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """JSON-able: for every setting its rows, the base first, and what the seeds agree on.

    A row has for every score its mean over seeds, for every judged reward its relative gain, and
    the columns of `measure` and `composite`; each as {mean, lo, hi, n} with a 95 % t-interval.
    """
    done = {cell: run.measured for cell, run in found.items()}
    settings = []
    pooled: dict[str, dict[str, dict[str, dict[int, float]]]] = {by: {} for by in POOLED}
    for setting in study.settings:
        runs: dict[str, dict[int, Measured]] = {}
        for cell, measured in done.items():
            if cell.setting == setting:
                runs.setdefault(cell.name, {})[cell.seed] = measured
        if runs:
            settings.append({"setting": setting, **_one_setting(runs)})
            for by, values in pooled.items():
                values[setting] = {
                    name: {seed: one.values[by] for seed, one in seeds.items()}
                    for name, seeds in runs.items()
                }
    devices = Counter(run.device for run in found.values())
    missing = [cell.folder for cell in study.cells if cell not in done]
    return {
        "study": study.name,
        "description": study.description,
        "show": list(study.show),
        "runs": len(study.cells),
        "failed": [{"run": f.folder, "said": f.said} for f in failures],
        "missing": missing,
        "devices": dict(devices),
        "settings": settings,
        "across": across(pooled["worst gain"], {"mean gain": pooled["mean gain"]}),
        "across all": across(pooled["worst gain"], widest=True),
    }


def _one_setting(runs: dict[str, dict[int, Measured]]) -> dict[str, Any]:
    sample = next(iter(next(iter(runs.values())).values()))
    for found in (one for seeds in runs.values() for one in seeds.values()):
        if list(found.scores) != list(sample.scores):
            raise MarbleError(
                "cells of one setting must be measured by the same rewards; use `settings` for "
                f"cells with others (here {list(sample.scores)} and {list(found.scores)})"
            )
    values = _values(runs, sample)
    reached, behind_most = shares(runs), least(runs)
    rows: list[dict[str, Any]] = [
        {
            "name": "base",
            "seeds": 0,
            "scores": {name: over_seeds([value]) for name, value in sample.base.items()},
        }
    ]
    for name, seeds in runs.items():
        measured = {column: over_seeds(list(c[name].values())) for column, c in values.items()}
        if np.isnan(list(values[PICTURES][name].values())).any():
            measured[PICTURES] = over_seeds(
                []
            )  # a mean over the seeds that got there would flatter
        if name in behind_most:
            measured[LEAST] = behind_most[name]
        rows.append(
            {
                "name": name,
                "seeds": len(seeds),
                "scores": _over(seeds, "scores", list(sample.scores)),
                "gains": _over(seeds, "gains", list(sample.gains)),
                "weights": _over(seeds, "weights", sample.trained),
                "values": measured,
                "curve": _curve(list(seeds.values())),
            }
        )
    compared = list(reached or runs)  # specialists are a yardstick, not in the race
    for row in rows[1:]:
        row["shares"] = reached.get(row["name"], {})
    best = max(rows[1:], key=lambda row: _or_least(row["values"]["worst gain"]["mean"]))["name"]
    for row in rows[1:]:
        if row["name"] != best:
            row["behind"] = {by: paired(values[by][best], values[by][row["name"]]) for by in RANKED}
    return {
        "trained": sample.trained,
        "heldout": sample.heldout,
        "judged": sample.judged,
        "best": best,
        "rows": rows,
        "ranks": {by: agreement({n: values[by][n] for n in compared}) for by in RANKED},
    }


def _values(
    runs: dict[str, dict[int, Measured]], sample: Measured
) -> dict[str, dict[str, dict[int, float]]]:
    """column → cell → seed → number, the composite among them.

    The composite is the mean z-score, over the judged and the held-out scores, among the base and
    all runs of the setting.
    """
    keys = [(name, seed) for name, seeds in runs.items() for seed in seeds]
    counted = [*sample.judged, *sample.heldout]
    table = [[sample.base[n] for n in counted]]
    table += [[runs[name][seed].scores[n] for n in counted] for name, seed in keys]
    together = composite(np.array(table))[1:]
    columns: dict[str, dict[str, dict[int, float]]] = {}
    for (name, seed), value in zip(keys, together):
        found = runs[name][seed].values
        first = {"worst gain": found["worst gain"], "composite": float(value)}
        for column, number in {**first, **found}.items():
            columns.setdefault(column, {}).setdefault(name, {})[seed] = number
    return columns


def _curve(seeds: list[Measured]) -> list[dict[str, Any]]:
    """Worst and mean gain at every step that all seeds evaluated."""
    steps = [s for s in seeds[0].curve if all(s in found.curve for found in seeds)]
    return [
        {
            "step": step,
            "worst gain": over_seeds([found.curve[step][0] for found in seeds]),
            "mean gain": over_seeds([found.curve[step][1] for found in seeds]),
        }
        for step in steps
    ]


def _over(seeds: dict[int, Measured], part: str, names: list[str]) -> dict[str, Any]:
    return {n: over_seeds([getattr(found, part)[n] for found in seeds.values()]) for n in names}


def _or_least(value: float | int) -> float:
    return float(value) if np.isfinite(value) else -np.inf
