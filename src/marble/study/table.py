"""A study's runs as one table: mean over seeds with its spread, ranks and their stability."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from marble.evaluation import compare_table
from marble.study.plan import Study
from marble.study.runner import finished


def study_table(study: Study, out: Path) -> dict[str, Any]:
    """Rows: the base and every cell; columns: scores, worst gain, joint rates, conflict, time."""
    runs = [cell for cell in study.cells if finished(out / cell.folder)]
    compared = compare_table([out / cell.folder for cell in runs])
    metrics = compared["metrics"]
    base = next((row for row in compared["rows"] if row["method"] is None), None)
    by_name: dict[str, list[dict[str, Any]]] = {name: [] for name in study.names}
    details = [row for row in compared["rows"] if row["method"] is not None]
    for cell, row in zip(runs, details):
        by_name[cell.name].append(_flat(row, metrics))
    rows = [] if base is None else [{"name": "base", "seeds": 0, **_only_scores(base, metrics)}]
    for name, found in by_name.items():
        if found:
            rows.append({"name": name, "seeds": len(found), **_aggregate(found)})
    return {"study": study.name, "metrics": metrics, "rows": rows, "rank": _ranks(by_name)}


def _flat(row: dict[str, Any], metrics: list[str]) -> dict[str, float]:
    flat = {name: _number(row["scores"][name]["mean"]) for name in metrics}
    flat["worst gain"] = _number((row.get("worst_gain") or {}).get("sigma"))
    flat["composite"] = _number(row.get("composite"))
    flat["domination"] = _number(row.get("joint_domination"))
    flat["collapse"] = _number(row.get("joint_collapse"))
    for kind, label in (
        ("harmony", "conflict"),
        ("harmony_heldout", "conflict held-out"),
        ("harmony_applied", "conflict applied"),
    ):
        flat[label] = _number(row["harmony"][kind]["conflict_rate"])
    flat["minutes"] = _number(row["seconds"]) / 60
    return flat


def _only_scores(row: dict[str, Any], metrics: list[str]) -> dict[str, Any]:
    values = {name: _number(row["scores"][name]["mean"]) for name in metrics}
    values["composite"] = _number(row.get("composite"))
    return {name: {"mean": value, "se": 0.0} for name, value in values.items()}


def _aggregate(found: list[dict[str, float]]) -> dict[str, Any]:
    result = {}
    for key in found[0]:
        values = np.array([row[key] for row in found])
        values = values[np.isfinite(values)]
        n = len(values)
        result[key] = {
            "mean": float(values.mean()) if n else float("nan"),
            "se": float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan"),
        }
    return result


def _ranks(by_name: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Rank of each cell by worst gain for each seed, and Kendall's W over seeds (1: all alike)."""
    complete = {name: rows for name, rows in by_name.items() if rows}
    seeds = min((len(rows) for rows in complete.values()), default=0)
    names = list(complete)
    if seeds < 2 or len(names) < 3:
        return {}
    table = np.array([[complete[n][s]["worst gain"] for n in names] for s in range(seeds)])
    ranks = np.argsort(np.argsort(-table, axis=1), axis=1) + 1
    total = ranks.sum(axis=0)
    spread = float(((total - total.mean()) ** 2).sum())
    n = len(names)
    w = 12 * spread / (seeds**2 * (n**3 - n))
    return {
        "by": "worst gain",
        "kendall_w": w,
        "ranks": {m: ranks[:, i].tolist() for i, m in enumerate(names)},
    }


def write_tables(table: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """`table.csv` and `table.md` in `folder`."""
    columns = list(
        dict.fromkeys(k for row in table["rows"] for k in row if k not in ("name", "seeds"))
    )
    csv_path, md_path = folder / "table.csv", folder / "table.md"
    with csv_path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["name", "seeds", *(f"{c} {part}" for c in columns for part in ("mean", "se"))]
        )
        for row in table["rows"]:
            cells = [(row.get(c) or {}).get(part) for c in columns for part in ("mean", "se")]
            writer.writerow(
                [row["name"], row["seeds"], *("" if v is None else f"{v:.6g}" for v in cells)]
            )
    lines = ["| " + " | ".join(["", "seeds", *columns]) + " |", "|" + "---|" * (len(columns) + 2)]
    for row in table["rows"]:
        lines.append(
            "| "
            + " | ".join([row["name"], str(row["seeds"]), *(_cell(row.get(c)) for c in columns)])
            + " |"
        )
    if table["rank"]:
        rank = table["rank"]
        w = f"Kendall's W = {rank['kendall_w']:.2f}"
        lines += ["", f"Rank stability over seeds, by {rank['by']}: {w}."]
    md_path.write_text("\n".join(lines) + "\n")
    return csv_path, md_path


def _cell(entry: dict[str, float] | None) -> str:
    if entry is None or entry["mean"] != entry["mean"]:
        return "–"
    spread = "" if not entry["se"] > 0 else f" ± {entry['se']:.3f}"
    return f"{entry['mean']:.3f}{spread}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
