"""One figure from a study with several settings: each rule's worst gain in each of them.

python scripts/settings_figure.py studies/results/stress.json --out docs/img/study-stress.png
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from figures import COLOURS, MARKS, main


def points(table: dict[str, Any]) -> dict[str, list[tuple[float, float, float] | None]]:
    """Rule → (worst gain, lower, upper end of its interval) in each column; None: not run.

    The columns are the settings and, where there is one, the least of several.
    """
    names = list(dict.fromkeys(r["name"] for p in table["settings"] for r in _measured(p)))
    columns = [{r["name"]: r["values"]["worst gain"] for r in _measured(p)} for p in _parts(table)]
    if table.get("across"):
        columns.append({row["name"]: row["least"] for row in table["across"]["rows"]})
    return {
        name: [
            (column[name]["mean"], column[name]["lo"], column[name]["hi"])
            if column.get(name) and column[name]["lo"] is not None
            else None
            for column in columns
        ]
        for name in names
    }


def labels(table: dict[str, Any]) -> list[str]:
    least = ["least of these"] if table.get("across") else []
    return [part["setting"] for part in _parts(table)] + least


def draw(table: dict[str, Any]) -> plt.Figure:
    found = points(table)
    figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for i, (name, values) in enumerate(found.items()):
        offset = (i - (len(found) - 1) / 2) * 0.11
        at = [(x, value) for x, value in enumerate(values) if value is not None]
        axis.errorbar(
            [x + offset for x, _ in at],
            [mean for _, (mean, _, _) in at],
            yerr=[[m - lo for _, (m, lo, _) in at], [hi - m for _, (m, _, hi) in at]],
            fmt=MARKS[i % len(MARKS)],
            color=COLOURS[i % len(COLOURS)],
            markersize=5,
            lw=1.2,
            label=name,
        )
    axis.axhline(0, color="#999999", lw=0.8, zorder=0)
    axis.set_xticks(range(len(labels(table))), labels(table))
    axis.set_ylabel("gain of the reward that\ngained least (σ of the base)")
    axis.legend(ncols=len(found), loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    return figure


def _parts(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings that count where several are taken together, else all of them."""
    chosen = (table.get("across") or {}).get("settings")
    return [p for p in table["settings"] if not chosen or p["setting"] in chosen]


def _measured(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in part["rows"] if "values" in row]


if __name__ == "__main__":
    main(__doc__, "JSON of `marble study`", lambda tables, _: draw(tables[0]))
