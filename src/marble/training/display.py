"""What a person sees while a run goes on: a live table in a terminal, quiet lines elsewhere."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
RECENT = 5
"""Steps whose mean is shown as "now"."""
ESTIMATE_AT = 3
"""Step after which a run says once how long it will take: the first is slower than the others."""


class _Left(ProgressColumn):
    """Time left by the mean step since training began. rich's own column forgets steps older than
    30 s, which is every step of a large model."""

    max_refresh = 1.0

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def render(self, task: Task) -> Text:
        left = self.clock.left()
        return Text("" if left is None else f"{timedelta(seconds=round(left))} left")


class Clock:
    """Seconds per step, evaluations and checkpoints in between included."""

    def __init__(self, steps: int, done: int) -> None:
        self.steps, self.first, self.done = steps, done, done
        self.began = self.at = time.monotonic()

    def begin(self) -> None:
        """Training begins: what came before, as the base's evaluation, is no part of a step."""
        self.began = self.at = time.monotonic()

    def step(self, done: int) -> None:
        self.done, self.at = done, time.monotonic()

    def per_step(self) -> float | None:
        taken = self.done - self.first
        return (self.at - self.began) / taken if taken > 0 else None

    def left(self) -> float | None:
        """Seconds until the last step is done; counts down between steps. None before the first."""
        each = self.per_step()
        if each is None:
            return None
        return max(0.0, each * (self.steps - self.done) - (time.monotonic() - self.at))


def redraws(console: Console) -> bool:
    """Whether lines can be drawn over. A notebook's `!command` has a terminal that cannot: every
    frame would stay. Kernels have their parent's id in the environment."""
    return console.is_terminal and "JPY_PARENT_PID" not in os.environ


class Display:
    """Follows metric rows. Use as a context manager; `say` prints a line either way.

    `doing` names what goes on between steps, where it may take long.
    """

    def __init__(self, names: list[str], steps: int, done: int, console: Console) -> None:
        self.names, self.steps, self.console = names, steps, console
        self.history: dict[str, list[float]] = {name: [] for name in names}
        self.alpha: dict[str, float] = {}
        self.worst: float | None = None
        self.gains: dict[str, float] = {}
        self._probed: set[str] = set()
        self.clock = Clock(steps, done)
        self._spoke = 0.0
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            _Left(self.clock),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._task = self._progress.add_task("train", total=steps, completed=done, note="")
        self._live = Live(console=console, refresh_per_second=4) if redraws(console) else None

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

    def begin(self) -> None:
        """The first step begins: from here on the time is counted."""
        self.clock.begin()

    def doing(self, what: str) -> None:
        self._progress.update(self._task, note=what)

    def show(self, row: Mapping[str, Any]) -> None:
        """Takes in one step's metrics."""
        for name in self.names:
            value = row.get(f"reward/{name}/mean")
            if value is not None and value == value:
                self.history[name].append(float(value))
            self.alpha[name] = float(row[f"alpha/{name}"])
        self.gained(row)
        self.clock.step(row["step"])
        if row.get("harmony/min") is not None:
            self.worst = float(row["harmony/min"])
        speed = f"{row['images_per_s']:.1f} images/s"
        self._progress.update(
            self._task, completed=row["step"], note=f"epoch {row['epoch'] + 1}  {speed}"
        )
        if self._live is not None:
            self._live.update(Group(self._progress, self._table(), self._caption()))
        elif row["step"] == self.steps or time.monotonic() - self._spoke > 20:
            self._spoke = time.monotonic()
            self.say(self._line(row, speed))
        if row["step"] - self.clock.first == ESTIMATE_AT and row["step"] < self.steps:
            self.say(self._estimate())

    def gained(self, row: Mapping[str, Any]) -> None:
        """Takes in paired gains over the base: the probe's, or those of the balance."""
        for name in self.names:
            gain = row.get(f"probe/{name}", row.get(f"progress/{name}"))
            if gain is not None and not (name in self._probed and f"probe/{name}" not in row):
                self.gains[name] = float(gain)
            if f"probe/{name}" in row:
                self._probed.add(name)

    def _estimate(self) -> str:
        each, left = self.clock.per_step() or 0.0, self.clock.left() or 0.0
        until = time.strftime("%a %H:%M", time.localtime(time.time() + left))
        more = self.steps - self.clock.done
        rest = "1 more step takes" if more == 1 else f"{more} more steps take"
        return f"about {lasting(each)} per step: {rest} about {lasting(left)}, until {until}"

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        # Names may take what two numbers, α, a short trend and the space between leave; then the
        # trend takes the rest.
        most = max(8, self.console.width - 46)
        longest = min(most, max(map(len, self.names)))
        trend = min(48, max(4, self.console.width - longest - 42))
        table.add_column("reward", no_wrap=True, max_width=most)
        # Batches have different prompts, so a change of their means is no verdict and has no
        # colour; a gain over the base on the same prompts and seeds has one.
        paired = bool(self.gains)
        for heading in ("now", "gain, σ" if paired else "change"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("trend", no_wrap=True)
        table.add_column("α", justify="right", no_wrap=True)
        for name in self.names:
            values = self.history[name]
            table.add_row(
                escape(name),
                f"{_mean(values[-RECENT:]):.3f}" if values else "–",
                self._gain(name) if paired else _told(_change(values)),
                sparkline(values, trend),
                f"{self.alpha.get(name, float('nan')):.2f}",
            )
        return table

    def _caption(self) -> Padding:
        caption = f"means of {RECENT} steps"
        if self.gains:
            caption += "; gain: over the base, same prompts and seeds"
        else:
            caption += "; prompts differ from step to step"
        if self.worst is not None:
            caption += f"; worst cosine of the update with a reward: {self.worst:+.3f}"
        return Padding(Text(caption, style="dim italic"), (0, 2))

    def _gain(self, name: str) -> str:
        gain = self.gains.get(name)
        if gain is None:
            return "–"
        return f"[{'green' if gain > 0 else 'red'}]{gain:+.2f}[/]"

    def _line(self, row: Mapping[str, Any], speed: str) -> str:
        rewards = [f"{n} {_mean(v[-RECENT:]):.3f}" for n, v in self.history.items() if v]
        parts = [f"step {row['step']}/{self.steps}", *rewards]
        if self.worst is not None:
            parts.append(f"worst cos {self.worst:+.3f}")
        parts.append(speed)
        left = self.clock.left()
        if left is not None and row["step"] < self.steps:
            parts.append(f"{timedelta(seconds=round(left))} left")
        return "  ".join(parts)


def lasting(seconds: float) -> str:
    """3.2 s, 12 s, 4 min, 2 h 10 min, 26 days."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
    return f"{seconds / 86400:.1f} days"


def _told(change: float | None) -> str:
    return signed(change) if change else "–"


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
