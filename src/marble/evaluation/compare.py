"""Runs side by side: every score, composite, joint rates, hypervolume, harmony, time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marble.evaluation.harmony import KINDS, harmony
from marble.evaluation.intervals import gain_interval
from marble.evaluation.measures import composite, joint_rates, relative_gains, wins
from marble.evaluation.pareto import hypervolume, pareto_front
from marble.evaluation.reading import number
from marble.evaluation.runs import Evaluation, RunRecord, read_run, score_tables, unjudged
from marble.evaluation.versus import record as record_versus
from marble.evaluation.versus import versus


def compare_table(runs: Sequence[str | Path | RunRecord]) -> dict[str, Any]:
    """One JSON-able table: `metrics` names the scores, `rows` hold the base and every run.

    The base is the first run's that measured it. A run's gains are paired with its own base, on
    the same prompts and seeds. `trained` are the rewards that every run was trained on; mean and
    worst gain, `versus`, joint rates, hypervolume and Pareto front are over these. The composite is
    the mean z-score, among the rows, of every score that all rows have.
    """
    records = [run if isinstance(run, RunRecord) else read_run(run) for run in runs]
    judged = [(record, record.last) for record in records]
    missing = [record.name for record, last in judged if last is None]
    if missing:
        raise unjudged(missing[0])
    named = [(record, last) for record, last in judged if last is not None]
    labels = _labels([record for record, _ in named])
    names = list(dict.fromkeys(n for _, last in named for n in last.names()))
    rows = [_run_row(record, last, names) for record, last in named]
    for row, label in zip(rows, labels):
        row["name"] = label
    base = next((record.base for record in records if record.base), None)
    if base is not None:
        rows.insert(0, {"name": "base", "method": None, "scores": _scores(base, names)})
    means = np.array([[number(row["scores"][n]["mean"]) for n in names] for row in rows])
    for row, value in zip(rows, composite(means.reshape(len(rows), len(names)))):
        row["composite"] = float(value)
    trained = [n for n in names if all(n in record.rewards for record in records)]
    _mark_front(rows, trained)
    table = {"metrics": names, "trained": trained, "rows": rows}
    found = None if base is None else versus(base, [last for _, last in named], trained)
    if found is not None:
        for at, row in enumerate(row for row in rows if row["method"] is not None):
            row["mean_gain"] = found.gains["mean gain"][at].record()
            row["worst_gain"] = {
                "reward": found.worst[at],
                "sigma": found.gains["worst gain"][at].mean,
                **found.gains["worst gain"][at].record(),
            }
        table["versus"] = record_versus(found, labels)
    return table


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """Folder names; with the folder above in front where two are the same."""
    names = [record.name for record in records]
    if len(set(names)) == len(names):
        return names
    return [f"{record.path.resolve().parent.name}/{record.name}" for record in records]


def _run_row(record: RunRecord, last: Evaluation, names: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": record.name,
        "method": record.method,
        "step": last.step,
        "scores": _scores(last, names),
        "seconds": record.seconds,
        "harmony": {kind: harmony(record.metrics, kind).record() for kind in KINDS},
    }
    if record.base is not None:
        row.update(_against_base(record, last, record.base, names))
    return row


def _against_base(
    record: RunRecord, last: Evaluation, base: Evaluation, names: list[str]
) -> dict[str, Any]:
    """Everything that needs the same pictures before and after."""
    now, then, prompts = score_tables(last, base, names)
    if not prompts:
        return {}
    gains = relative_gains(now, then)
    trained = [k for k, name in enumerate(names) if name in record.rewards]
    known = [k for k in trained if np.isfinite(gains[k])]
    joint = joint_rates(now[trained], then[trained])
    result: dict[str, Any] = {
        "gains": {n: gain_interval(now[k], then[k], prompts).record() for k, n in enumerate(names)},
        "won": {n: _json(w.won) for n, w in zip(names, wins(now, then))},
        "joint_domination": _json(joint.domination),
        "joint_collapse": _json(joint.collapse),
    }
    if known:
        worst = min(known, key=lambda k: gains[k])
        result["worst_gain"] = {"reward": names[worst], "sigma": float(gains[worst])}
        result["hypervolume"] = _hypervolume(record, base, [names[k] for k in known], then[known])
    return result


def _hypervolume(
    record: RunRecord, base: Evaluation, names: list[str], then_KN: np.ndarray
) -> dict[str, float] | None:
    """What the run's evaluations dominate above the base, in the base's standard deviations."""
    spread = np.array([np.nanstd(row) for row in then_KN])
    if not (spread > 0).all():
        return None
    start = np.array([base.mean(name) for name in names])
    points = [[e.mean(n) for n in names] for e in record.evals if e.policy != "base"]
    above = (np.array(points) - start) / spread
    above = above[np.isfinite(above).all(axis=1)]
    if not len(above):
        return None
    volume = hypervolume(above, np.zeros(len(names)))
    return {"value": volume.value, "error": volume.error}


def _mark_front(rows: list[dict[str, Any]], names: list[str]) -> None:
    points = np.array([[number(row["scores"][n]["mean"]) for n in names] for row in rows])
    if not names or not np.isfinite(points).all():
        return
    for row, on_front in zip(rows, pareto_front(points)):
        row["pareto"] = bool(on_front)


def _scores(evaluation: Evaluation, names: list[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        for part in ("rewards", "heldout"):
            entry = (evaluation.record.get(part) or {}).get(name)
            if isinstance(entry, dict):
                found[name] = {key: entry.get(key) for key in ("mean", "lo", "hi", "n")}
        found.setdefault(name, {"mean": None, "lo": None, "hi": None, "n": 0})
    return found


def _json(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
