"""What every rule did to every reward: a study's relative gains as one figure.

python scripts/study_figure.py studies/results/regime.json --out docs/img/study-regime.png
python scripts/study_figure.py studies/results/long.json --curves --out docs/img/study-long.png
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from figures import COLOURS, MARKS, main


def rows_to_show(table: dict[str, Any], setting: str) -> tuple[dict[str, Any], list[Any]]:
    """The setting, and its rows that documentation shows, best worst gain on top."""
    [part] = [part for part in table["settings"] if part["setting"] == setting]
    names = table.get("show") or [row["name"] for row in part["rows"]]
    rows = [row for row in part["rows"] if "gains" in row and row["name"] in names]
    rows.sort(key=lambda row: row["values"]["worst gain"]["mean"])
    return part, rows


def draw(table: dict[str, Any], setting: str = "") -> plt.Figure:
    part, rows = rows_to_show(table, setting)
    judged = part["judged"]
    figure, axes = plt.subplots(figsize=(9, 0.48 * len(rows) + 1.6), layout="constrained")
    offsets = [0.34 * (i / (len(judged) - 1) - 0.5) if len(judged) > 1 else 0 for i in range(99)]
    for k, name in enumerate(judged):
        at = [i - offsets[k] for i in range(len(rows))]
        entries = [row["gains"][name] for row in rows]
        means = [entry["mean"] for entry in entries]
        half = [e["mean"] - e["lo"] if e["lo"] is not None else 0 for e in entries]
        axes.errorbar(
            means,
            at,
            xerr=half,
            fmt=MARKS[k % len(MARKS)],
            color=COLOURS[k % len(COLOURS)],
            markersize=6,
            elinewidth=0.8,
            alpha=0.9,
            label=name.removeprefix("studio-"),
        )
    axes.axvline(0, color="#444", linewidth=0.9)
    axes.set_yticks(range(len(rows)), [f"{row['name']} ({row['seeds']})" for row in rows])
    shown = [entry["mean"] for row in rows for entry in row["gains"].values()]
    axes.set_xlim(min([0.0, *shown]) - 0.1, max([0.5, *shown]) + 0.25)
    axes.set_xlabel("relative gain on held-out prompts, in the base's standard deviations")
    axes.set_title(
        "Gain of every reward: mean over (seeds), 95 % interval, best worst gain on top",
        loc="left",
        fontsize=10,
    )
    axes.grid(axis="x", color="#e4e4e4")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(loc="outside lower center", ncols=len(judged), frameon=False)
    return figure


def curves(table: dict[str, Any], setting: str = "") -> plt.Figure:
    """Worst and mean gain over the steps, one line for every method."""
    _, rows = rows_to_show(table, setting)
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axes, by in zip(panels, ("worst gain", "mean gain")):
        for k, row in enumerate(reversed(rows)):
            points = [(0, 0.0), *((at["step"], at[by]["mean"]) for at in row["curve"])]
            look = {"marker": MARKS[k % len(MARKS)], "color": COLOURS[k % len(COLOURS)]}
            label = f"{row['name']} ({row['seeds']})"
            axes.plot(*zip(*points), **look, markersize=5, label=label if by[0] == "w" else None)
        axes.axhline(0, color="#444", linewidth=0.9)
        axes.set_title(f"{by} over the steps", loc="left", fontsize=10)
        axes.set_xlabel("step")
        axes.grid(color="#e4e4e4")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("in the base's standard deviations")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


OPTIONS: dict[str, dict[str, Any]] = {
    "--setting": {"default": ""},
    "--curves": {"action": "store_true", "help": "gains over the steps of the runs"},
}

if __name__ == "__main__":
    main(
        __doc__,
        "a study's JSON",
        lambda tables, asked: (curves if asked.curves else draw)(tables[0], asked.setting),
        options=OPTIONS,
    )
