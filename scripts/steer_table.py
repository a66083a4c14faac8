"""Tables of scripts/steer_front.py: fronts, what each slider does, and the least at any setting."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = re.compile(r"(<!-- steer front -->\n).*?(<!-- end of front -->)", re.DOTALL)
LINE = 5
"""Settings of a slider, evenly over its range."""


def gains_of(point: Mapping[str, Any], base: Mapping[str, Any], names: list[str]) -> np.ndarray:
    from marble.evaluation import relative_gains

    if not names:
        return np.zeros(0)
    now, then = (np.array([p["scores"][n] for n in names], dtype=float) for p in (point, base))
    return relative_gains(now, then)


def summary(folder: Path, others: Sequence[Path] = ()) -> dict[str, Any]:
    """The numbers of the tables, per seed."""
    records = {p.stem: json.loads(p.read_text()) for p in sorted((folder / "front").glob("*.json"))}
    base = records.pop("base")["points"][0]
    first = next(iter(records.values()))
    names = first["names"]
    heldout = [n for n in base["scores"] if n not in names]
    seeds = sorted({r["seed"] for r in records.values()})
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        own = {r["cell"]: r for r in records.values() if r["seed"] == seed}
        rows += [_front(cell, seed, r, base, names, heldout) for cell, r in own.items()
                 if cell.startswith("steer") or cell in ("soup", "marble", "distil")]  # fmt: skip
        towards = [r for cell, r in own.items() if cell.startswith("towards-")]
        asked = {p.name for p in folder.glob(f"towards-*-seed{seed}") if p.is_dir()}
        if towards and asked <= set(records):  # of fewer, a front would be another one
            points = [r["points"][0] | {"label": r["cell"]} for r in towards]
            joined = {"points": points, "range": None}
            rows.append(_front("retrained", seed, joined, base, names, heldout))
    found = {"rewards": names, "heldout": heldout, "pictures": len(base["scores"][names[0]])}
    for path in others:
        there = json.loads(path.read_text())
        if {key: there[key] for key in found} != found:
            raise SystemExit(f"{path}: other rewards, or other held-out pictures")
        new = sorted(set(there["seeds"]) - set(seeds))
        seeds += new
        rows += [row for row in there["fronts"] if row["seed"] in new]
    return {**found, "seeds": sorted(seeds), "fronts": rows}


def _front(
    cell: str,
    seed: int,
    record: dict[str, Any],
    base: dict[str, Any],
    names: list[str],
    heldout: list[str],
) -> dict[str, Any]:
    from scipy.stats import spearmanr

    from marble.evaluation import hypervolume

    table = {p["label"]: gains_of(p, base, names) for p in record["points"]}
    away = {p["label"]: gains_of(p, base, heldout) for p in record["points"]}
    spread = {p["label"]: p["diversity"] / base["diversity"] for p in record["points"]}
    points = np.array(list(table.values()))
    few = np.array([g for label, g in table.items() if label in names] or points)
    sliders = {}
    if record["range"]:
        for k, name in enumerate(names):
            at = np.linspace(0.0, record["range"], LINE)
            gains = [float(table[f"{name} = {value:g}"][k]) for value in at]
            # A slider that moves nothing at all has no order: 0.
            rho = float(spearmanr(at, gains)[0]) if np.ptp(gains) > 0 else 0.0
            sliders[name] = {"at": at.tolist(), "gain": gains, "rho": rho}
    zero, low = np.zeros(len(names)), -np.ones(len(names))
    default = table.get("default")
    return {
        "cell": cell,
        "seed": seed,
        "points": {label: gains.tolist() for label, gains in table.items()},
        "heldout": {label: gains.tolist() for label, gains in away.items()},
        "diversity": spread,
        "hypervolume": hypervolume(points, zero).value,
        "hypervolume_low": hypervolume(points, low).value,
        "hypervolume_five": hypervolume(few, zero).value,
        "hypervolume_five_low": hypervolume(few, low).value,
        "default": None if default is None else {"worst": default.min(), "mean": default.mean()},
        "sliders": sliders,
        "least_diversity": min(spread.values()),
        "least_heldout": {
            name: min(gains[i] for gains in away.values()) for i, name in enumerate(heldout)
        },
    }


def markdown(found: Mapping[str, Any], *, whole: bool = True) -> str:
    """Fronts, what each slider does, the least at any setting; `whole`: and every score."""
    cells = dict.fromkeys(row["cell"] for row in found["fronts"])
    by = {c: [r for r in found["fronts"] if r["cell"] == c] for c in cells}
    by = dict(sorted(by.items(), key=lambda one: -_mean(one[1], "hypervolume_low")))
    seeds = ", ".join(map(str, found["seeds"]))
    of = f", each on {found['pictures']} held-out pictures" if "pictures" in found else ""
    lines = [
        f"Seeds {seeds}{of}; mean ± standard deviation over seeds. Gains are in standard "
        "deviations (σ) of the base's scores, and diversity is a part of the base's. The "
        "hypervolume is that of all settings measured, or of the five corners alone.",
        "",
        *_fronts(by, whole),
    ]
    for cell, rows in by.items():
        if rows[0]["sliders"]:
            lines += ["", *_sliders(cell, rows, found["rewards"])]
    lines += ["", *_least(by, found["heldout"])]
    if whole:
        lines += ["", *_settings(by, [*found["rewards"], *found["heldout"], "diversity"])]
    return "\n".join(lines) + "\n"


def _fronts(by: Mapping[str, list[dict[str, Any]]], whole: bool) -> list[str]:
    columns = {
        "hypervolume, from −1 σ": "hypervolume_low",
        "five corners, from −1 σ": "hypervolume_five_low",
        "worst gain, default": "worst",
        "mean gain, default": "mean",
        "least diversity": "least_diversity",
    }
    digits = 2
    if whole:
        digits = 3
        columns |= {
            "hypervolume, above the base": "hypervolume",
            "five corners, above the base": "hypervolume_five",
        }
    against = {r["seed"]: r["hypervolume_low"] for r in by.get("retrained", [])}
    head = ["front", "settings", *columns]
    if against:
        head.insert(3, "of retraining")
    lines = [f"| {' | '.join(head)} |", "|---|" + "---|" * (len(head) - 1)]
    for cell, rows in by.items():
        flat = [row | (row["default"] or {}) for row in rows]
        shown = [_spread([r[key] for r in flat if key in r], digits) for key in columns.values()]
        if against:
            both = [r["hypervolume_low"] / against[r["seed"]] for r in rows if r["seed"] in against]
            shown.insert(1, f"{100 * np.mean(both):.0f} %" if both else "–")
        lines.append(f"| {cell} | {len(rows[0]['points'])} | " + " | ".join(shown) + " |")
    return lines


def _sliders(cell: str, rows: list[dict[str, Any]], rewards: list[str]) -> list[str]:
    at = rows[0]["sliders"][rewards[0]]["at"]
    lines = [f"`{cell}`: a reward's own gain over its slider's range, others at 1.", ""]
    lines += ["| slider | " + " | ".join(f"{v:g}" for v in at) + " | Spearman, by seed |"]
    lines += ["|---|" + "---|" * (len(at) + 1)]
    for name in rewards:
        own = [r["sliders"][name] for r in rows]
        gains = np.mean([one["gain"] for one in own], axis=0)
        rho = ", ".join(f"{one['rho']:.2f}" for one in own)
        lines.append(f"| {name} | " + " | ".join(f"{g:+.2f}" for g in gains) + f" | {rho} |")
    return lines


def _least(by: Mapping[str, list[dict[str, Any]]], heldout: list[str]) -> list[str]:
    said = "The least at any setting, by seed: gains of scores not trained on, and diversity."
    lines = [said, "", "| front | " + " | ".join([*heldout, "diversity"]) + " |"]
    lines += ["|---|" + "---|" * (len(heldout) + 1)]
    for cell, rows in by.items():
        told = [", ".join(f"{r['least_heldout'][name]:+.2f}" for r in rows) for name in heldout]
        told.append(", ".join(f"{r['least_diversity']:.2f}" for r in rows))
        lines.append(f"| {cell} | " + " | ".join(told) + " |")
    return lines


def _settings(by: Mapping[str, list[dict[str, Any]]], columns: list[str]) -> list[str]:
    lines = ["| front, setting | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for cell, rows in by.items():
        for label in rows[0]["points"]:
            if " = " in label or " + " in label:
                continue
            own = np.mean([r["points"][label] + r["heldout"][label] for r in rows], axis=0)
            spread = np.mean([r["diversity"][label] for r in rows])
            told = " | ".join(f"{g:+.2f}" for g in own)
            lines.append(f"| {cell}, {label} | {told} | {spread:.2f} |")
    return lines


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


# -- where they go ---------------------------------------------------------------------------------


def store(found: Mapping[str, Any], path: Path) -> None:
    """The numbers, to six digits, and the tables beside them as a page."""
    found = _rounded(found)
    path.write_text(json.dumps(found) + "\n")
    name = path.stem
    by = f"By `scripts/steer_front.py`, from the runs of studies/{name}.yaml."
    path.with_suffix(".md").write_text(f"# Front of `{name}`\n\n{by}\n\n{markdown(found)}")


def publish(found: Mapping[str, Any], page: Path) -> None:
    """The shorter tables, in the page's block; nothing else on the page changes."""
    text = page.read_text()
    if not BLOCK.search(text):
        raise SystemExit(f"{page}: it has no <!-- steer front --> … <!-- end of front -->")
    page.write_text(filled(text, found))


def filled(text: str, found: Mapping[str, Any]) -> str:
    block = markdown(found, whole=False)
    return BLOCK.sub(lambda m: f"{m[1]}{block}{m[2]}", text, count=1)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value
