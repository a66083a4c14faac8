"""Training curves, harmony and advantages of one run, thinned for the page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marble.report.folder import Run, read_advantages
from marble.report.numbers import bin_edges, bin_means, bin_steps, compact, mean, thin

PHASES = ("rollout", "reward", "paired", "train", "refresh", "eval")
HARMONY = {
    "harmony": "this method's direction",
    "harmony_heldout": "same, on batches not used to solve",
    "harmony_applied": "the step the optimiser applied",
    "harmony_sum": "the weighted sum, same batches",
}
FIRST_STEPS = 5
"""Steps whose mean stands for the untrained model in the relative curves."""
MOST_MATRICES = 60
MOST_BARS = 60
MOST_TABLES = 12
MOST_COLUMNS = 240


def training(run: Run, most: int) -> dict[str, Any]:
    """Rewards, α, gradient norms, KL, distance to v_old, time by phase: at most `most` points."""
    metrics = run.metrics
    bins = bin_edges(len(metrics.steps), most)

    def curve(key: str) -> list[float | None] | None:
        values = bin_means(metrics.get(key), bins)
        return compact(values) if np.isfinite(values).any() else None

    def by_reward(prefix: str, suffix: str = "") -> dict[str, list[float | None]]:
        found = {name: curve(f"{prefix}/{name}{suffix}") for name in run.rewards}
        return {name: values for name, values in found.items() if values}

    return {
        "steps": bin_steps(metrics.steps, bins),
        "per_point": math.ceil(len(metrics.steps) / max(1, len(bins))),
        "reward": by_reward("reward", "/mean"),
        "origin": {n: _origin(run, n) for n in run.rewards},
        "progress": by_reward("progress"),
        "alpha": _shares(by_reward("alpha"), run.pursued),
        "grad_norm": by_reward("grad_norm"),
        "vitals": {k: c for k in ("kl", "old_deviation", "loss") if (c := curve(k))},
        "time": _times(run),
        "drift": {
            name: values for name in metrics.names("drift/") if (values := curve(f"drift/{name}"))
        },
    }


def _shares(
    alpha: dict[str, list[float | None]], pursued: list[str]
) -> dict[str, list[float | None]]:
    """α of the rewards that take part; where a method leaves some out, shares among the others."""
    kept = {name: curve for name, curve in alpha.items() if name in pursued}
    if len(kept) == len(alpha):
        return alpha
    table = np.array(list(kept.values()), dtype=np.float64)  # [kept, points], None → NaN
    total = np.nansum(table, axis=0)
    shares = np.divide(table, total, out=np.full_like(table, np.nan), where=total > 0)
    return {name: compact(row) for name, row in zip(kept, shares)}


def harmony(run: Run, most: int) -> dict[str, Any]:
    """Worst, mean and variance of the cosines on refresh steps, and the cosine matrices."""
    kinds = {}
    for key, label in HARMONY.items():
        low = run.metrics.get(f"{key}/min")
        rows = np.isfinite(low)
        if not rows.any():
            continue
        steps = run.metrics.steps[rows]
        curves = {
            part: thin(steps, run.metrics.get(f"{key}/{part}")[rows], most)[1]
            for part in ("min", "mean", "var")
        }
        kinds[key] = {
            "label": label,
            "steps": thin(steps, low[rows], most)[0],
            "conflict": float(np.mean(low[rows] < 0)),
            "averages": {p: compact([mean(run.metrics.get(f"{key}/{p}"))])[0] for p in curves},
            "n": int(rows.sum()),
            **curves,
        }
    return {"kinds": kinds, "cosines": _cosines(run)}


def advantages(run: Run) -> list[dict[str, Any]]:
    """Advantage tables, samples ordered by source and group; None where a reward does not apply."""
    tables = list(read_advantages(run))
    keep = _evenly(len(tables), MOST_TABLES)
    return [_table(tables[i], run.rewards) for i in keep]


def _times(run: Run) -> dict[str, Any]:
    """Seconds per step by phase; a phase that a step had none of took no time there."""
    metrics = run.metrics
    bins = bin_edges(len(metrics.steps), MOST_BARS)
    logged = {p: metrics.columns[f"time/{p}"] for p in PHASES if f"time/{p}" in metrics.columns}
    filled = {p: np.nan_to_num(column) for p, column in logged.items()}
    return {
        "steps": bin_steps(metrics.steps, bins),
        "per_point": math.ceil(len(metrics.steps) / max(1, len(bins))),
        "phases": {p: compact(bin_means(column, bins), 3) for p, column in filled.items()},
        "totals": {p: float(column.sum()) for p, column in filled.items()},
    }


def _origin(run: Run, name: str) -> dict[str, float | None]:
    """Where a reward's curve starts and the spread of its pictures there."""
    start = mean(_finite(run.metrics.get(f"reward/{name}/mean"))[:FIRST_STEPS])
    spread = mean(_finite(run.metrics.get(f"reward/{name}/std"))[:FIRST_STEPS])
    return dict(zip(("mean", "std"), compact([start, spread if spread > 0 else math.nan], 6)))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.asarray(values[np.isfinite(values)])


def _cosines(run: Run) -> dict[str, Any] | None:
    names = run.rewards
    pairs = [(a, b) for a in range(len(names)) for b in range(a + 1, len(names))]
    columns = []
    for a, b in pairs:
        straight = run.metrics.get(f"cos/{names[a]}|{names[b]}")
        turned = run.metrics.get(f"cos/{names[b]}|{names[a]}")
        columns.append(np.where(np.isfinite(straight), straight, turned))
    if not columns:
        return None
    table = np.stack(columns, axis=1)
    rows = np.flatnonzero(np.isfinite(table).any(axis=1))
    if not len(rows):
        return None
    rows = rows[_evenly(len(rows), MOST_MATRICES)]
    return {
        "steps": [int(s) for s in run.metrics.steps[rows]],
        # Upper triangles, row by row, in hundredths: the page mirrors them.
        "upper": [[None if math.isnan(v) else round(100 * v) for v in row] for row in table[rows]],
    }


def _table(table: dict[str, Any], order: list[str]) -> dict[str, Any]:
    samples, rows = table["samples"], table["advantage"]
    names = [str(n) for n in table.get("rewards") or order[: len(rows)]]
    full = np.full((len(names), len(samples)), np.nan)
    for k, row in enumerate(rows[: len(names)]):
        values = [math.nan if v is None else float(v) for v in row[: len(samples)]]
        full[k, : len(values)] = values
    sources = [str(s.get("source") or "unknown") for s in samples]
    groups = [int(s.get("group") or 0) for s in samples]
    ordered = sorted(range(len(samples)), key=lambda i: (sources[i], groups[i], i))
    shown = [ordered[i] for i in _evenly(len(ordered), MOST_COLUMNS)]
    return {
        "step": int(table.get("step") or 0),
        "rewards": names,
        "samples": len(samples),
        "source": [sources[i] for i in shown],
        "group": [groups[i] for i in shown],
        "prompt": [str(samples[i].get("prompt", ""))[:120] for i in shown],
        "values": [
            [None if math.isnan(v) else round(float(v), 2) for v in row] for row in full[:, shown]
        ],
        "specialists": specialist_share(full),
    }


def specialist_share(adv_KN: np.ndarray) -> float | None:
    """Share of samples that are good for one reward only: A > 1 there, a mean below 0 elsewhere.

    Counted over samples that at least two rewards apply to; a plain average of advantages would
    wash such samples out.
    """
    known = np.isfinite(adv_KN)
    several = known.sum(axis=0) >= 2
    if not several.any():
        return None
    adv = adv_KN[:, several]
    valid = known[:, several]
    best = np.where(valid, adv, -np.inf).max(axis=0)
    others = (np.where(valid, adv, 0).sum(axis=0) - best) / (valid.sum(axis=0) - 1)
    return float(np.mean((best > 1) & (others < 0)))


def _evenly(n: int, most: int) -> list[int]:
    """At most `most` of n indices, evenly spaced, first and last among them."""
    return sorted({int(i) for i in np.linspace(0, n - 1, min(n, most)).round()}) if n else []
