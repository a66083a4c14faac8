"""One finished run of a study as numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marble.errors import MarbleError
from marble.evaluation import harmony, joint_rates, read_run, relative_gains, score_tables
from marble.evaluation.runs import RunRecord

CONFLICTS = {
    "conflict": "harmony",
    "conflict, other half": "harmony_heldout",
    "conflict, applied": "harmony_applied",
}

# The worst gain up to which pictures are counted.
REACHED = 0.3
PICTURES = f"pictures to {REACHED:g}"


@dataclass(frozen=True)
class Measured:
    """`values`: column → number (NaN: not measured)."""

    scores: dict[str, float]
    base: dict[str, float]
    gains: dict[str, float]
    """Relative gain of each score: paired mean gain ÷ standard deviation of the base's scores."""
    weights: dict[str, float]
    """Share of each training reward's coefficient, c_k / Σ c, mean over the steps."""
    values: dict[str, float]
    curve: dict[int, tuple[float, float]]
    """Step → worst and mean gain of the judged rewards, at every evaluation."""
    trained: list[str]
    heldout: list[str]
    judged: list[str]
    """Training rewards by which runs are ranked."""


def measure(folder: Path, judge: Sequence[str] = ()) -> Measured:
    """The last evaluation of a run against its own base: the same held-out prompts and seeds."""
    run = read_run(folder)
    last, base = run.last, run.base
    if last is None or base is None:
        raise MarbleError(f"{folder}: a study needs an evaluation of the base and one at the end")
    names = last.names()
    trained = [name for name in names if name in run.rewards]
    judged = [name for name in trained if name in judge] if judge else trained
    now, then, _ = score_tables(last, base, names)
    gains = dict(zip(names, relative_gains(now, then).tolist()))
    rows = [names.index(name) for name in judged]
    joint = joint_rates(now[rows], then[rows])
    curve = _curve(run, judged)
    known = [gains[name] for name in judged if np.isfinite(gains[name])]
    values = {
        "worst gain": min(known, default=np.nan),
        "mean gain": float(np.mean(known)) if known else np.nan,
        "domination": joint.domination,
        "collapse": joint.collapse,
        **{label: harmony(run.metrics, kind).conflict_rate for label, kind in CONFLICTS.items()},
        "drift flags": _drift_flags(run),
        PICTURES: _pictures(run, curve),
        "diversity": _last(run, "probe/diversity"),
        "warned at": _warned(run),
        "minutes": run.seconds / 60,
    }
    return Measured(
        scores={name: last.mean(name) for name in names},
        base={name: base.mean(name) for name in names},
        gains=gains,
        weights=dict(zip(trained, _shares(run, trained).tolist())),
        values=values,
        curve=curve,
        trained=trained,
        heldout=[name for name in names if name not in trained],
        judged=judged,
    )


def device_of(folder: Path) -> str:
    """What the run was made on."""
    try:
        return str(json.loads((folder / "environment.json").read_text())["device"])
    except (OSError, ValueError, KeyError):
        return "unknown"


def _shares(run: RunRecord, names: list[str]) -> np.ndarray:
    """Of the coefficients that the steps were taken with, on the raw gradients."""
    rows = [[row.get(f"coefficient/{name}") for name in names] for row in run.metrics]
    table = np.array([row for row in rows if None not in row], dtype=np.float64)
    table = table.reshape(-1, len(names))
    total = table.sum(axis=1)
    if not (total > 0).any():
        return np.full(len(names), np.nan)
    return np.asarray((table / np.where(total > 0, total, 1)[:, None])[total > 0].mean(axis=0))


def _curve(run: RunRecord, judged: Sequence[str]) -> dict[int, tuple[float, float]]:
    """Step → worst and mean gain, at every evaluation, in order."""
    found: dict[int, tuple[float, float]] = {}
    for evaluation in run.evals:
        if run.base is not None and evaluation.policy != "base":
            now, then, _ = score_tables(evaluation, run.base, list(judged))
            gains = relative_gains(now, then)
            if not np.isnan(gains).all():  # else its scores are not there
                found[evaluation.step] = (float(np.nanmin(gains)), float(np.nanmean(gains)))
    return dict(sorted(found.items()))


def _pictures(run: RunRecord, curve: dict[int, tuple[float, float]]) -> float:
    """Pictures trained on until the worst judged gain is `REACHED`; NaN where it never gets there.

    Between two evaluations the gain is taken to be a straight line.
    """
    data = run.config.get("data") or {}
    per_epoch = data.get("prompts_per_epoch", np.nan) * data.get("images_per_prompt", np.nan)
    epochs = {row.get("step"): row.get("epoch", row.get("step")) for row in run.metrics}
    before = (0.0, 0.0)
    for step, (worst, _) in curve.items():
        drawn = epochs.get(step, np.nan) * per_epoch
        if worst >= REACHED:
            return float(np.interp(REACHED, (before[1], worst), (before[0], drawn)))
        before = (drawn, worst)
    return np.nan


def _last(run: RunRecord, name: str) -> float:
    """The latest value of a metric."""
    found = [row[name] for row in run.metrics if isinstance(row.get(name), int | float)]
    return float(found[-1]) if found else np.nan


def _warned(run: RunRecord) -> float:
    """The step at which training first told that it had collapsed; NaN: never."""
    told = [
        row["step"]
        for row in run.metrics
        if any(str(note).startswith("collapse:") for note in row.get("notes") or ())
    ]
    return float(told[0]) if told else np.nan


def _drift_flags(run: RunRecord) -> float:
    """How many drift statistics are flagged at the last evaluation, as on the report page."""
    from marble.report.folder import read_run as read_for_report
    from marble.report.verdict import judge

    last = judge(read_for_report(run.path)).last
    return np.nan if last is None or not last.checks else float(len(last.flagged))
