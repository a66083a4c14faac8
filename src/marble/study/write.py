"""A study's table as files: JSON (everything), CSV (one line per cell), Markdown (to be read)."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

ABOUT = """\
Means over seeds ± half of the 95 % t-interval. *Relative gain* of a reward: mean paired gain on the
held-out prompts (same prompts and seeds as the base), in standard deviations of the base's scores.
*Worst* and *mean gain* are over the judged training rewards; *composite* is the mean z-score over
these and the held-out scores, among the base and all runs of the table; *domination* and *collapse*
are shares of pictures that beat, or lose to, the base's picture of the same prompt and seed on
every judged reward. *Conflict* is the share of measured steps with a negative cosine between the
direction and some reward's gradient, on the batch it was solved on, on the other half of the
samples, and of the step the optimiser took. *Pictures to 0.3*: trained on until the worst gain was
0.3, by straight lines between evaluations. *Share of the specialist's gain*: beside runs of the
same length on that reward alone; *least share*: of the reward that is furthest behind. *Drift
flags*: drift statistics outside the base's range.
*Diversity*: how much pictures of one prompt differ at the last probe, beside the base's. *Warned
at*: the step at which training told that it had collapsed (mean over the seeds where it did)."""


def write_tables(table: dict[str, Any], folder: Path) -> list[Path]:
    """`table.json`, `table.csv` and `table.md` in `folder`."""
    paths = [folder / f"table.{ending}" for ending in ("json", "csv", "md")]
    paths[0].write_text(to_json(table))
    with paths[1].open("w", newline="") as file:
        _write_csv(table, csv.writer(file))
    paths[2].write_text(markdown(table))
    return paths


def to_json(table: dict[str, Any]) -> str:
    """Strict JSON: what is not a number is null. Six digits, so that a diff can be read."""
    return json.dumps(_plain(table), indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _write_csv(table: dict[str, Any], writer: Any) -> None:
    columns: dict[tuple[str, str], None] = {}
    for part in table["settings"]:
        for row in part["rows"]:
            for kind in ("values", "gains", "weights", "scores"):
                columns |= dict.fromkeys((kind, name) for name in row.get(kind, {}))
    labels = {"values": "{}", "gains": "relative gain {}", "weights": "weight {}", "scores": "{}"}
    heads = [labels[kind].format(name) for kind, name in columns]
    parts = ("mean", "lo", "hi")
    writer.writerow(["setting", "name", "seeds", *(f"{h} {p}" for h in heads for p in parts)])
    for part in table["settings"]:
        for row in part["rows"]:
            entries = [row.get(kind, {}).get(name, {}) for kind, name in columns]
            numbers = [_number(entry.get(p)) for entry in entries for p in parts]
            writer.writerow([part["setting"], row["name"], row["seeds"], *numbers])


def _number(value: float | None) -> str:
    return f"{value:.6g}" if value is not None and math.isfinite(value) else ""


def markdown(table: dict[str, Any]) -> str:
    lines = [f"# Study `{table['study']}`", "", table["description"], "", ABOUT]
    for part in table["settings"]:
        if part["setting"]:
            lines += ["", f"## {part['setting']}"]
        lines += ["", *summary(part), "", *scores(part), "", *weights(part), *specialists(part)]
        lines += ["", *order(part)]
    done = table["runs"] - len(table["missing"])
    lines += ["", f"{done} of {table['runs']} runs are finished{ran_on(table)}."]
    lines += [f"- `{failed['run']}` failed: {failed['said']}" for failed in table["failed"]]
    return "\n".join(lines) + "\n"


def ran_on(table: dict[str, Any]) -> str:
    """ ", on DEVICE (runs) and …", where runs of a table were made on several."""
    devices = table.get("devices", {})
    if len(devices) < 2:
        return ""
    return ", on " + " and ".join(f"{device} ({n})" for device, n in devices.items())


def summary(part: dict[str, Any], columns: list[str] | None = None) -> list[str]:
    """The measures of every cell as a Markdown table, best worst gain first."""
    rows = [row for row in part["rows"] if "values" in row]
    rows.sort(key=lambda row: -sortable(row["values"]["worst gain"]["mean"]))
    columns = columns or list(dict.fromkeys(c for row in rows for c in row["values"]))
    body = [
        [row["name"], str(row["seeds"]), *(cell(row["values"].get(c)) for c in columns)]
        for row in rows
    ]
    return _grid(["", "seeds", *columns], body)


def scores(part: dict[str, Any]) -> list[str]:
    """Every score of the base and of every cell."""
    names = [*part["trained"], *part["heldout"]]
    heads = [*part["trained"], *(f"{name} (held out)" for name in part["heldout"])]
    body = [[row["name"], *(cell(row["scores"].get(n)) for n in names)] for row in part["rows"]]
    return _grid(["", *heads], body)


def weights(part: dict[str, Any]) -> list[str]:
    """Which reward had how much say, as shares of the coefficients."""
    rows = [row for row in part["rows"] if "weights" in row]
    names = part["trained"]
    body = [[row["name"], *(cell(row["weights"].get(n)) for n in names)] for row in rows]
    return _grid(["mean share c/Σc", *names], body)


def specialists(part: dict[str, Any]) -> list[str]:
    """Which share of its specialist's gain every reward reaches; [] without specialists."""
    rows = [row for row in part["rows"] if row.get("shares")]
    names = [name for name in part["judged"] if any(name in row["shares"] for row in rows)]
    body = [[row["name"], *(cell(row["shares"].get(n), 2) for n in names)] for row in rows]
    return ["", *_grid(["share of the specialist's gain", *names], body)] if body else []


def order(part: dict[str, Any], measures: Sequence[str] = ()) -> list[str]:
    """What the seeds agree on, and whom the leader is clear of, in sentences."""
    lines = []
    for by in measures or part["ranks"]:
        found = part["ranks"][by]
        if found:
            lines.append(
                f"Order by {by}: Kendall's W = {found['kendall_w']:.2f} (mean Spearman "
                f"{found['mean_spearman']:.2f}) over {found['seeds']} seeds; `{found['first']}` is "
                f"first in {found['first_in']} of {found['seeds']}.  "
            )
    for by in measures or part["ranks"]:
        apart: list[str] = []
        close: list[str] = []
        for row in part["rows"]:
            gap = row.get("behind", {}).get(by)
            if gap is not None:
                clear = gap["lo"] is not None and gap["lo"] > 0
                (apart if clear else close).append(f"`{row['name']}`")
        if apart or close:
            ahead = f"is ahead of {_listed(apart)} in {by}"
            tie = f"the interval does not exclude a tie, or the opposite, for {_listed(close)}"
            told = ahead if not close else f"{ahead}; {tie}"
            lines.append(f"Paired by seed, `{part['best']}` {told}.  ")
    return lines


def cell(entry: Entry | None, digits: int = 3) -> str:
    """`mean ± half the interval`."""
    mean, lo = (None, None) if entry is None else (entry["mean"], entry["lo"])
    if mean is None or not math.isfinite(mean):
        return "–"
    known = lo is not None and math.isfinite(lo)
    digits = 0 if abs(mean) >= 1000 else digits  # pictures, not scores
    return f"{mean:.{digits}f}" + (f" ± {mean - lo:.{digits}f}" if known and mean > lo else "")


def _grid(heads: list[str], body: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(row) + " |" for row in body]


def sortable(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else -math.inf


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
