"""Which rule wins as the batch grows: worst and mean gain over the signal in a batch's gradients.

Each study has a record of `marble geometry --base` with as many pictures per step, in its order.

python scripts/batch_figure.py studies/results/{small,regime,large}.json \\
    --geometry studies/results/geometry-{24,96,576}.json --out docs/img/study-batches.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from figures import COLOURS, MARKS, main
from study_figure import rows_to_show


def signal(record: dict[str, Any]) -> float:
    """The signal's share of ‖g‖², mean over the rewards."""
    shares = [entry["share"] for entry in record["signal"]["plain"].values()]
    return sum(shares) / len(shares)


def draw(tables: list[dict[str, Any]], records: list[dict[str, Any]]) -> plt.Figure:
    if len(tables) != len(records):
        raise SystemExit(f"{len(tables)} studies, but {len(records)} files of --geometry")
    sizes = sorted(zip(tables, records), key=lambda pair: signal(pair[1]))
    by_method = [{row["name"]: row for row in rows_to_show(table, "")[1]} for table, _ in sizes]
    names = [name for name in by_method[-1] if all(name in rows for rows in by_method)]
    names.sort(key=lambda name: -by_method[0][name]["values"]["worst gain"]["mean"])
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained", sharey=True)
    for axes, by in zip(panels, ("worst gain", "mean gain")):
        for k, name in enumerate(names):
            found = [rows[name]["values"][by] for rows in by_method]
            axes.errorbar(
                # side by side, so that intervals can be told apart
                [signal(record) * 1.03 ** (k - (len(names) - 1) / 2) for _, record in sizes],
                [value["mean"] for value in found],
                yerr=[0 if v["lo"] is None else v["mean"] - v["lo"] for v in found],
                marker=MARKS[k % len(MARKS)],
                color=COLOURS[k % len(COLOURS)],
                elinewidth=0.8,
                markersize=5,
                label=name if by[0] == "w" else None,
            )
        axes.axhline(0, color="#444", linewidth=0.9)
        axes.set_title(f"{by}, σ of the base", loc="left", fontsize=10)
        axes.set_xscale("log")
        axes.set_xticks(
            [signal(record) for _, record in sizes],
            [f"{signal(r):.0%}\n{r['settings']['pictures']} pictures" for _, r in sizes],
        )
        axes.minorticks_off()
        axes.set_xlabel("signal's share of ‖g‖² at the base, mean over rewards")
        axes.grid(color="#e4e4e4")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(names), frameon=False)
    return figure


OPTIONS: dict[str, dict[str, Any]] = {
    "--geometry": {"nargs": "+", "type": Path, "required": True, "help": "its records, in order"}
}

if __name__ == "__main__":
    main(
        __doc__,
        "JSON of studies",
        lambda tables, asked: draw(tables, [json.loads(f.read_text()) for f in asked.geometry]),
        several=True,
        options=OPTIONS,
    )
