"""What a person sees while a run goes on: a live table in a terminal, quiet lines elsewhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
TREND = 24


class Display:
    """Follows metric rows. Use as a context manager; `say` prints a line either way."""

    def __init__(self, names: list[str], steps: int, done: int, console: Console) -> None:
        self.names, self.steps, self.console = names, steps, console
        self.history: dict[str, list[float]] = {name: [] for name in names}
        self.alpha: dict[str, float] = {}
        self.worst: float | None = None
        self._started, self._first, self._spoke = time.monotonic(), done, 0.0
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._task = self._progress.add_task("train", total=steps, completed=done, note="")
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.update(self._progress)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, row: Mapping[str, Any]) -> None:
        """Takes in one step's metrics."""
        for name in self.names:
            value = row.get(f"reward/{name}/mean")
            if value is not None and value == value:
                self.history[name].append(float(value))
            self.alpha[name] = float(row[f"alpha/{name}"])
        if row.get("harmony/min") is not None:
            self.worst = float(row["harmony/min"])
        speed = f"{row['images_per_s']:.1f} images/s"
        self._progress.update(
            self._task, completed=row["step"], note=f"epoch {row['epoch'] + 1}  {speed}"
        )
        if self._live is not None:
            self._live.update(Group(self._progress, self._table()))
        elif row["step"] == self.steps or time.monotonic() - self._spoke > 20:
            self._spoke = time.monotonic()
            self.say(self._line(row, speed))

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for heading, justify in (("reward", "left"), ("now", "right"), ("change", "right")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        table.add_column("trend")
        table.add_column("α", justify="right")
        for name in self.names:
            values = self.history[name]
            now, change = (_mean(values[-5:]), _change(values)) if values else (None, None)
            colour = "green" if (change or 0) >= 0 else "red"
            table.add_row(
                name,
                "–" if now is None else f"{now:.3f}",
                "–" if change is None else f"[{colour}]{signed(change)}[/]",
                sparkline(values, TREND),
                f"{self.alpha.get(name, float('nan')):.2f}",
            )
        if self.worst is not None:
            table.caption = f"worst cosine of the update with a reward: {self.worst:+.3f}"
        return table

    def _line(self, row: Mapping[str, Any], speed: str) -> str:
        rewards = "  ".join(f"{n} {_mean(v[-5:]):.3f}" for n, v in self.history.items() if v)
        worst = "" if self.worst is None else f"  worst cos {self.worst:+.3f}"
        done = row["step"] - self._first
        left = (time.monotonic() - self._started) / max(1, done) * (self.steps - row["step"])
        return (
            f"step {row['step']}/{self.steps}  {rewards}{worst}  {speed}  {left / 60:.1f} min left"
        )


def signed(value: float) -> str:
    """A change with its sign; one too small for three decimals in powers of ten."""
    return f"{value:+.1e}" if 0 < abs(value) < 5e-4 else f"{value:+.3f}"


def sparkline(values: list[float], width: int) -> str:
    """The course of `values` in at most `width` characters, each the mean of its stretch."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high <= low:
        return BARS[0] * count
    return "".join(BARS[round((m - low) / (high - low) * (len(BARS) - 1))] for m in means)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _change(values: list[float]) -> float:
    """Last five against first five."""
    return _mean(values[-5:]) - _mean(values[:5])
