"""One figure from the JSON of `marble geometry`: signal, cosines, weights, alignment.

marble geometry runs/mine --base --out base.json
marble geometry runs/mine --out trained.json
python scripts/geometry_figure.py base.json trained.json --out geometry.png
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from figures import COLOURS as REWARDS
from figures import MARKS, main

# Okabe and Ito's palette: told apart by everyone, also in print.
FILES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def checked(records: list[dict[str, Any]]) -> plt.Figure:
    names = records[0]["rewards"]
    if any(record["rewards"] != names for record in records):
        raise SystemExit("the files are about different rewards; draw them one by one")
    if len(records) > len(FILES):
        raise SystemExit(f"at most {len(FILES)} files in one figure")
    return draw(records, names)


def draw(records: list[dict[str, Any]], names: list[str]) -> plt.Figure:
    rules = [label for label in records[-1]["rules"] if "Gram" not in label]
    pairs = len(names) * (len(names) - 1) // 2
    heights = [max(len(names), 6), max(len(rules) * 1.3, 6)]
    figure, axes = plt.subplots(
        2,
        2,
        figsize=(11, 8 + 0.15 * max(0, pairs - 10)),
        height_ratios=heights,
        layout="constrained",
    )
    figure.get_layout_engine().set(wspace=0.08, hspace=0.08)
    _signal(axes[0, 0], records, names)
    _cosines(axes[0, 1], records, names)
    _weights(axes[1, 0], records[-1], names)
    _alignment(axes[1, 1], records, rules)
    handles = [
        Line2D([], [], color=FILES[i], marker="o", linestyle="", label=_label(record))
        for i, record in enumerate(records)
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(records), fontsize=10)
    return figure


def _signal(ax: Axes, records: list[dict[str, Any]], names: list[str]) -> None:
    ax.set_title("Signal in the gradient of one batch")
    for i, record in enumerate(records):
        entries = [record["signal"]["plain"][name] for name in names]
        bars = ax.barh(
            [k + _shift(i, len(records), 0.8) for k in range(len(names))],
            [100 * entry["share"] for entry in entries],
            height=0.7 / len(records),
            xerr=[100 * (entry["share_error"] or 0) for entry in entries],
            color=FILES[i],
            edgecolor=FILES[i],
            error_kw={"elinewidth": 1, "ecolor": "#444444"},
        )
        for bar, entry in zip(bars, entries):
            if not entry["resolved"]:
                bar.set_facecolor("white")
    _rows(ax, names)
    ax.set_xlim(left=0)
    if not all(e["resolved"] for r in records for e in r["signal"]["plain"].values()):
        empty = Patch(facecolor="white", edgecolor="#444444", label="lost in noise")
        ax.legend(handles=[empty], loc="best")
    ax.set_xlabel("share of ‖g‖² that is signal, % (the rest is noise)")


def _cosines(ax: Axes, records: list[dict[str, Any]], names: list[str]) -> None:
    ax.set_title("Agreement of rewards: true, and as one batch shows it")
    pairs = list(combinations(range(len(names)), 2))
    for i, record in enumerate(records):
        found = record["cosines"]["plain"]
        for row, (a, b) in enumerate(pairs):
            y, true, seen = (
                row + _shift(i, len(records), 0.7),
                found["true"][a][b],
                found["apparent"],
            )
            ax.plot(seen[a][b], y, "o", mfc="white", mec=FILES[i], ms=5)
            if true is not None:
                error = found["true_error"][a][b] or 0
                ends = [[min(error, true + 1)], [min(error, 1 - true)]]
                ax.plot([seen[a][b], true], [y, y], color=FILES[i], lw=0.8, alpha=0.5, zorder=0)
                ax.errorbar(true, y, xerr=ends, fmt="o", color=FILES[i], ms=5, elinewidth=1)
    ax.axvline(0, color="#444444", lw=0.8)
    _rows(ax, [f"{_short(names[a])} · {_short(names[b])}" for a, b in pairs])
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel("cosine")
    marks = [
        Line2D([], [], color="#444444", marker="o", linestyle="", ms=5, label="true"),
        Line2D(
            [], [], mec="#444444", mfc="white", marker="o", linestyle="", ms=5, label="apparent"
        ),
    ]
    _legend_above(ax, marks)


def _weights(ax: Axes, record: dict[str, Any], names: list[str]) -> None:
    rule = record["rules"]["marble"]
    sizes = list(rule["averaged"])
    ax.set_title(f"Weights of the published rule ({_label(record)})")
    places = range(len(sizes) + 1)
    for k, name in enumerate(names):
        means = [rule["averaged"][size]["alpha"]["mean"][name] for size in sizes]
        spread = [rule["averaged"][size]["alpha"]["std"][name] or 0 for size in sizes]
        color, mark = REWARDS[k % len(REWARDS)], MARKS[k % len(MARKS)]
        nudge = _shift(k, len(names), 0.25)
        ax.errorbar(
            [p + nudge for p in places[:-1]],
            means,
            yerr=spread,
            color=color,
            marker=mark,
            ms=5,
            elinewidth=0.8,
        )
        limit = rule["limit"]["alpha"][name]
        ax.plot(
            [places[-2] + nudge, places[-1] + nudge], [means[-1], limit], ":", color=color, lw=1
        )
        ax.plot(places[-1] + nudge, limit, mark, color=color, ms=7)
    ax.plot([-0.4, places[-1] + 0.2], [1 / len(names)] * 2, color="#444444", lw=0.8, ls="--")
    ax.text(places[-2] + 0.15, 1 / len(names), "uniform", va="bottom", ha="center", fontsize=8)
    ends = {name: rule["limit"]["alpha"][name] for name in names}
    top = max(ax.get_ylim()[1], 0.1)
    for name, y in zip(names, _apart([ends[name] for name in names], 0.045 * top)):
        color = REWARDS[names.index(name) % len(REWARDS)]
        ax.text(places[-1] + 0.3, y, _short(name), color=color, va="center", fontsize=8)
    ax.set_xlim(-0.4, places[-1] + 1.1)
    ax.set_xticks(list(places), [*sizes, "no noise"])
    ax.set_ylim(-0.01, top)
    ax.set_xlabel("batches averaged before the solve")
    ax.set_ylabel("α, mean and spread")


def _alignment(ax: Axes, records: list[dict[str, Any]], rules: list[str]) -> None:
    ax.set_title("What one batch's direction is worth to the worst reward")
    adam = False
    for i, record in enumerate(records):
        for row, label in enumerate(rules):
            if label not in record["rules"]:
                continue
            y = row + _shift(i, len(records), 0.6)
            one = record["rules"][label]["averaged"]["1"]
            for way, mark, off in (("plain", "o", -0.06), ("adam", "^", 0.06)):
                if way not in one or one[way]["worst"] is None:
                    continue
                adam |= way == "adam"
                ax.errorbar(
                    one[way]["worst"],
                    y + off,
                    xerr=one[way]["worst_error"] or 0,
                    fmt=mark,
                    color=FILES[i],
                    mfc=FILES[i] if way == "plain" else "white",
                    ms=6,
                    elinewidth=1,
                )
                if way == "plain":
                    who = _short(one[way]["worst_reward"])
                    at = (one[way]["worst"], y + off)
                    ax.annotate(
                        who, at, (0, 5), textcoords="offset points", ha="center", fontsize=7,
                        color="#444444",
                    )  # fmt: skip
    ax.axvline(0, color="#444444", lw=0.8)
    _rows(ax, rules)
    ax.set_xlabel("cosine with the true gradient of the reward served worst (named)")
    marks = [Line2D([], [], color="#444444", marker="o", linestyle="", label="as it is")]
    if adam:
        marks.append(
            Line2D([], [], mec="#444444", mfc="white", marker="^", linestyle="", label="after Adam")
        )
    _legend_above(ax, marks)


def _legend_above(ax: Axes, marks: list[Line2D]) -> None:
    """Under the title, where no data can lie."""
    ax.legend(
        handles=marks, loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=2, borderaxespad=0
    )
    ax.set_title(ax.get_title(loc="left"), pad=20)


def _rows(ax: Axes, labels: list[str]) -> None:
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#DDDDDD", lw=0.6)
    ax.set_axisbelow(True)


def _shift(i: int, count: int, width: float) -> float:
    return width * ((i + 0.5) / count - 0.5)


def _apart(values: list[float], gap: float) -> list[float]:
    """Places for labels near `values` that do not overlap."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    places, last = [0.0] * len(values), -gap
    for i in order:
        last = max(values[i], last + gap)
        places[i] = last
    return places


def _short(name: str) -> str:
    return name.rsplit("-", 1)[-1]


def _label(record: dict[str, Any]) -> str:
    return "base" if record["base"] else f"step {record['step']}, {record['method']}"


if __name__ == "__main__":
    main(__doc__, "JSON of `marble geometry`", lambda records, _: checked(records), several=True)
