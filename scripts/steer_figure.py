"""A steered training's front beside its rivals', and what each slider does to its own reward.

python scripts/steer_figure.py studies/results/steer.json --out docs/img/steer-front.png
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from figures import COLOURS, MARKS, main

SHOWN = {
    "steer": "steer, one training, 41 settings",
    "retrained": "five retrainings, 5× the pictures",
    "soup": "soups of specialists",
    "marble": "marble, one point",
    "distil": "specialists distilled, one point",
}


def widest(rows: list[dict[str, Any]]) -> str:
    """The reward that its own slider moves furthest: the one there is a trade-off about."""
    return max(rows[0]["sliders"], key=lambda name: np.ptp(_line(rows, name)[1]))


def _line(rows: list[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Settings of a slider, its own reward's gain there beyond that at 1: mean over seeds."""
    k = list(rows[0]["sliders"]).index(name)
    at = rows[0]["sliders"][name]["at"]
    own = np.mean([row["sliders"][name]["gain"] for row in rows], axis=0)
    default = np.mean([row["points"]["default"][k] for row in rows])
    gains = {**dict(zip(at, own)), 1.0: default}
    x = np.array(sorted(gains))
    return x, np.array([gains[value] for value in x]) - default


def _bounded(axes: plt.Axes, drawn: dict[str, np.ndarray]) -> None:
    """Limits by all fronts but the soups, of which one far below would press the others together;
    a note says how many of them are further out."""
    shown = np.hstack([points for cell, points in drawn.items() if cell != "soup"])
    low, high = shown.min(axis=1), shown.max(axis=1)
    low = np.minimum(low - 0.08 * (high - low), [low[0], 0.0])
    high = high + 0.08 * (high - low)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    soups = drawn.get("soup", shown[:, :0])
    out = soups[:, (np.clip(soups.T, low, high) != soups.T).any(axis=1)]
    if out.size:
        x, y = out[:, np.argmin(out[1])]
        said = f"{out.shape[1]} further out, down to ({x:.1f}, {y:.1f})".replace("-", "−")
        axes.text(0.02, 0.02, f"soups: {said}", transform=axes.transAxes, fontsize=8)


def draw(found: dict[str, Any]) -> plt.Figure:
    by = {
        cell: [row for row in found["fronts"] if row["cell"] == cell]
        for cell in SHOWN
        if any(row["cell"] == cell for row in found["fronts"])
    }
    one = widest(by["steer"])
    k = found["rewards"].index(one)
    figure, (front, lines) = plt.subplots(1, 2, figsize=(9, 4.1), layout="constrained")
    drawn: dict[str, np.ndarray] = {}
    for place, (cell, rows) in enumerate(by.items()):
        labels = list(rows[0]["points"])
        gains = np.mean([[row["points"][label] for label in labels] for row in rows], axis=0)
        others = np.delete(gains, k, axis=1).mean(axis=1)
        colour = COLOURS[place % len(COLOURS)]
        drawn[cell] = np.stack([gains[:, k], others])
        front.scatter(
            *drawn[cell],
            s=18 if len(labels) > 5 else 42,
            marker=MARKS[place % len(MARKS)],
            color=colour,
            alpha=0.75,
            label=SHOWN[cell],
            zorder=2 if cell == "steer" else 3,
        )
        if cell == "steer":  # the way that the slider itself takes
            way = [labels.index(f"{one} = {value:g}") for value in rows[0]["sliders"][one]["at"]]
            front.plot(gains[way, k], others[way], color=colour, linewidth=1)
    _bounded(front, drawn)
    front.set_xlabel(f"gain of {one}, σ of the base")
    front.set_ylabel("mean gain of the other rewards, σ")
    front.set_title("The front", loc="left", fontsize=10)
    for place, name in enumerate(found["rewards"]):
        at, gain = _line(by["steer"], name)
        lines.plot(
            at,
            gain,
            marker=MARKS[place % len(MARKS)],
            color=COLOURS[place % len(COLOURS)],
            markersize=5,
            label=name,
        )
    lines.axvline(1, color="#444", linewidth=0.8, linestyle=":")
    lines.set_xlabel("the reward's own slider, others at 1")
    lines.set_ylabel("its gain less that at the default, σ")
    lines.set_title("What a slider does", loc="left", fontsize=10)
    lines.legend(frameon=False, fontsize=8)
    for axes in (front, lines):
        axes.axhline(0, color="#444", linewidth=0.9)
        axes.grid(color="#e4e4e4")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.legend(
        *front.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=8,
    )
    return figure


if __name__ == "__main__":
    main(__doc__, "front.json of scripts/steer_front.py", lambda records, _: draw(records[0]))
