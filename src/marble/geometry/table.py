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
    for number in range(1, len(found["rewards"])):  # names would not fit above the columns
        table.add_column(str(number), justify="right", overflow="fold")
    for i, name in enumerate(found["rewards"]):
        cells = [
            f"{_signed(found['true'][i][j])} ({_signed(found['apparent'][i][j])})" if j < i else ""
            for j in range(len(found["rewards"]) - 1)
        ]
        table.add_row(f"{i + 1} {name}", *cells)
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
    title = "α of the published rule (marble), by batches averaged, and without noise"
    table = _table(title, "batches")
    table.pad_edge = False
    for heading in (*rule["averaged"], "true"):
        table.add_column(heading, justify="right")
    for name, limit in rule["limit"]["alpha"].items():
        cells = []
        for alpha in (entry["alpha"] for entry in rule["averaged"].values()):
            error = alpha["std"][name]
            cells.append(_number(alpha["mean"][name]) + _plus_minus(error))
        table.add_row(name, *cells, _number(limit))
    return table


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f" ± {_number(error)}"


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    return table


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"
