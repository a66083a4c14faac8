"""What `marble geometry` prints for a person."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text


def show(record: dict[str, Any], console: Console) -> None:
    s = record["settings"]
    where = "before its first step" if record["base"] else f"after step {record['step']}"
    console.print(
        f"{record['run']}, {where}: {s['batches']} independent batches of {s['pictures']} "
        f"pictures, seed {s['seed']}, target {s['target']}",
        highlight=False,
    )
    parts = [_signal(record), _cosines(record), _rules(record, "plain")]
    if "adam" in record["signal"]:
        parts.append(_rules(record, "adam"))
    console.print(Group(*(line for part in parts for line in (part, Text())), _weights(record)))
    lost = [name for name, entry in record["signal"]["plain"].items() if not entry["resolved"]]
    if lost:
        console.print(
            f"\n* Lost in noise: {', '.join(lost)}. No cosine with a true gradient can be told; "
            "the worst and the mean are over the others.",
            highlight=False,
        )


def _signal(record: dict[str, Any]) -> Table:
    table = _table("signal in one batch's gradient", "reward")
    plain, adam = record["signal"]["plain"], record["signal"].get("adam")
    for heading in ("‖g‖ one batch", "‖g‖ true", "share of signal", "±", "batches for ½"):
        table.add_column(heading, justify="right")
    if adam:
        table.add_column("share, Adam's metric", justify="right")
    for name, entry in plain.items():
        cells = [
            f"{entry['one_batch_norm2'] ** 0.5:.3g}" if entry["one_batch_norm2"] else "–",
            f"{entry['signal_norm2'] ** 0.5:.3g}" if (entry["signal_norm2"] or 0) > 0 else "–",
            _number(entry["share"]),
            _number(entry["share_error"]),
            _number(entry["batches_for_half"], 1),
        ]
        label = name if entry["resolved"] else f"{name} *"
        table.add_row(label, *cells, *([_number(adam[name]["share"])] if adam else []))
    return table


def _cosines(record: dict[str, Any]) -> Table:
    found = record["cosines"]["plain"]
    table = _table("cosine of true gradients (apparent on one batch)", "")
    for name in found["rewards"]:
        table.add_column(name, justify="right", overflow="fold")
    for i, name in enumerate(found["rewards"]):
        cells = [
            f"{_signed(found['true'][i][j])} ({_signed(found['apparent'][i][j])})" if j < i else ""
            for j in range(len(found["rewards"]))
        ]
        table.add_row(name, *cells)
    return table


def _rules(record: dict[str, Any], applied: str) -> Table:
    """Against the true gradients; `applied`: the direction as it is (`plain`), or `adam`."""
    plain = applied == "plain"
    table = _table("direction from one batch against the true gradients", "rule")
    if not plain:
        table.title = "the same, after division by Adam's √v̂"
    for heading in ("worst cosine", "reward", "mean"):
        table.add_column(heading, justify="left" if heading == "reward" else "right")
    for heading in ("conflict in batch", "on another", "worst without noise") if plain else ():
        table.add_column(heading, justify="right")
    for label, rule in record["rules"].items():
        one = rule["averaged"]["1"][applied]
        worst = f"{_signed(one['worst'])} ± {_number(one['worst_error'])}"
        cells = [worst if one["worst"] is not None else "–", one["worst_reward"] or "–"]
        cells.append(_signed(one["mean"]))
        if plain:
            cells += [f"{one[key]:.0%}" for key in ("conflict_in_batch", "conflict_out_of_batch")]
            cells.append(_signed(rule["limit"]["plain"]["worst"]))
        table.add_row(label, *cells)
    return table


def _weights(record: dict[str, Any]) -> Table:
    rule = record["rules"]["marble"]
    table = _table("α of the published rule (marble), by batches averaged", "batches")
    names = list(rule["limit"]["alpha"])
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for size, entry in rule["averaged"].items():
        mean, std = entry["alpha"]["mean"], entry["alpha"]["std"]
        row = [
            _number(mean[n]) + ("" if std[n] is None else f" ± {_number(std[n])}") for n in names
        ]
        table.add_row(size, *row)
    table.add_row("without noise", *(_number(rule["limit"]["alpha"][n]) for n in names))
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    return table


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"
