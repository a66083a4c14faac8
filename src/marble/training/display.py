"""What a person sees while a run goes on: a live table in a terminal, quiet lines elsewhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
RECENT = 5
"""Steps whose mean is shown as "now"."""


class Display:
    """Follows metric rows. Use as a context manager; `say` prints a line either way.

    `doing` names what goes on between steps, where it may take long.
    """

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
        # A terminal breaks between words, a file keeps the line whole.
        whole = not self.console.is_terminal
        self.console.print(line, highlight=False, markup=False, soft_wrap=whole)

    def doing(self, what: str) -> None:
        self._progress.update(self._task, note=what)

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
        table = Table(box=None, padding=(0, 2), header_style="dim", caption_justify="left")
        # Names may take what two numbers, α, a short trend and the space between leave; then the
        # trend takes the rest.
        most = max(8, self.console.width - 46)
        longest = min(most, max(map(len, self.names)))
        trend = min(48, max(4, self.console.width - longest - 42))
        table.add_column("reward", no_wrap=True, max_width=most)
        for heading in ("now", "change"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("trend", no_wrap=True)
        table.add_column("α", justify="right", no_wrap=True)
        for name in self.names:
            values = self.history[name]
            change = _change(values)
            colour = "green" if (change or 0) > 0 else "red"
            table.add_row(
                escape(name),
                f"{_mean(values[-RECENT:]):.3f}" if values else "–",
                f"[{colour}]{signed(change)}[/]" if change else "–",
                sparkline(values, trend),
                f"{self.alpha.get(name, float('nan')):.2f}",
            )
        caption = f"  means of {RECENT} steps"
        if self.worst is not None:
            caption += f"; worst cosine of the update with a reward: {self.worst:+.3f}"
        table.caption = caption
        return table

    def _line(self, row: Mapping[str, Any], speed: str) -> str:
        rewards = [f"{n} {_mean(v[-RECENT:]):.3f}" for n, v in self.history.items() if v]
        parts = [f"step {row['step']}/{self.steps}", *rewards]
        if self.worst is not None:
            parts.append(f"worst cos {self.worst:+.3f}")
        parts.append(speed)
        done, left = row["step"] - self._first, self.steps - row["step"]
        if left:
            seconds = (time.monotonic() - self._started) / max(1, done) * left
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        return "  ".join(parts)


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


def _change(values: list[float]) -> float | None:
    """The last few steps against the first few; None before there are two."""
    if len(values) < 2:
        return None
    few = min(RECENT, len(values) // 2)
    return _mean(values[-few:]) - _mean(values[:few])
