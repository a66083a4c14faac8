"""How well a run knows its own progress: by twins and by batch means, against held-out prompts.

marble study studies/stress.yaml --out runs/stress
python scripts/twins_figure.py runs/stress/studio-progress-seed* --json studies/results/twins.json
python scripts/twins_figure.py --json studies/results/twins.json --out docs/img/twins.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from marble.evaluation import read_run, relative_gains, score_tables

# Okabe and Ito's palette: told apart by everyone, also in print.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
STYLE = Path(__file__).with_name("figures.mplstyle")
# As `balance.progress` measures without twins: the mean of the first steps, then a moving average.
WARMUP, DECAY = 5, 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="runs of `progress` with twins")
    parser.add_argument("--json", type=Path, required=True, help="written if there are runs")
    parser.add_argument("--out", "-o", type=Path, help="the figure")
    args = parser.parse_args()
    if args.runs:
        args.json.write_text(json.dumps([record(run) for run in args.runs], indent=1) + "\n")
        print(args.json)
    if args.out:
        with plt.style.context(STYLE):
            draw(json.loads(args.json.read_text())).savefig(args.out, bbox_inches="tight")
        print(args.out)


def record(folder: Path) -> dict[str, Any]:
    """Progress and weights by step, and what the end is worth on held-out prompts."""
    run = read_run(folder)
    if run.last is None or run.base is None:
        raise SystemExit(f"{folder}: needs an evaluation of the base and one at the end")
    names = list(run.rewards)
    now, then, _ = score_tables(run.last, run.base, names)
    rows = [row for row in run.metrics if f"coefficient/{names[0]}" in row]
    if f"progress/{names[0]}" not in rows[-1]:
        raise SystemExit(f"{folder}: not a run of progress by twins")

    def column(key: str) -> dict[str, list[float | None]]:
        return {n: [_short(row.get(key.format(n))) for row in rows] for n in names}

    return {
        "run": folder.name,
        "steps": [row["step"] for row in rows],
        "heldout": dict(zip(names, map(_short, relative_gains(now, then)))),
        "twins": column("progress/{}"),
        "batches": {name: by_batches(rows, name) for name in names},
        "weights": column("coefficient/{}"),
    }


def by_batches(rows: list[dict[str, Any]], name: str) -> list[float | None]:
    """(R̄ − R(0)) / std, the measure without twins, on the same batches."""
    means = [row[f"reward/{name}/mean"] for row in rows]
    stds = [row[f"reward/{name}/std"] for row in rows[:WARMUP]]
    start = float(np.mean(means[:WARMUP]))
    unit, smooth = float(np.sqrt(np.mean(np.square(stds)))), start
    found: list[float | None] = [None] * WARMUP
    for mean in means[WARMUP:]:
        smooth = DECAY * smooth + (1 - DECAY) * mean
        found.append(_short((smooth - start) / unit))
    return found


def _short(value: Any) -> float | None:
    return None if value is None else round(float(value), 4)


def draw(records: list[dict[str, Any]]) -> plt.Figure:
    names = list(records[0]["heldout"])
    colour = dict(zip(names, COLOURS))
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for kind, mark, axis in (("twins", "o", axes[0]), ("batches", "x", axes[1])):
        for name in names:
            x = [one["heldout"][name] for one in records]
            y = [one[kind][name][-1] for one in records]
            label = name.removeprefix("studio-")
            axis.scatter(x, y, s=24, marker=mark, color=colour[name], label=label)
        axis.axline((0.3, 0.3), slope=1, color="#999999", lw=0.8, zorder=0)
        axis.set(xlim=(0, 0.65), ylim=(0, 0.65), xlabel="gain on held-out prompts (σ)")
    axes[0].set(title="Progress by twins", ylabel="progress at the end, as the run knows it (σ)")
    axes[1].set(title="… by means of batches")
    axes[0].legend(loc="upper left")
    for shown in names[-1:]:
        for i, one in enumerate(records):
            label = shown.removeprefix("studio-") if i == 0 else None
            axes[2].plot(
                one["steps"], one["weights"][shown], color=colour[shown], lw=1, label=label
            )
    axes[2].axhline(1 / len(names), color="#999999", lw=0.8, zorder=0)
    axes[2].set(title="Its weight, seed by seed", xlabel="step", ylim=(0, 0.7))
    axes[2].legend(loc="upper left")
    return figure


if __name__ == "__main__":
    main()
