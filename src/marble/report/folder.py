"""A run folder as the page needs it: finished or not, with whatever has arrived.

A missing file is an empty answer, a line cut short is left out, a step written twice (a resumed
run) counts once, with its later values.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble.evaluation.harmony import KINDS
from marble.evaluation.reading import (
    entries,
    numbers,
    parse_json,
    read_config,
    read_json,
    run_folder,
    step_of,
)
from marble.evaluation.runs import Evaluation, RunRecord, evaluation_of, read_jsonl

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metrics:
    """metrics.jsonl by column: values [rows], NaN where a step did not log the key."""

    steps: NDArray[np.int64]
    columns: dict[str, Floats]

    def get(self, key: str) -> Floats:
        """The column, or all NaN where no step logged it."""
        return self.columns.get(key, np.full(len(self.steps), np.nan))

    def names(self, prefix: str, suffix: str = "") -> list[str]:
        """What stands between a prefix and a suffix in the keys, in order of appearance."""
        return [
            key[len(prefix) : len(key) - len(suffix)]
            for key in self.columns
            if key.startswith(prefix) and key.endswith(suffix)
        ]


@dataclass(frozen=True)
class Picture:
    """One picture of an index.json, its file there."""

    id: int
    file: Path
    prompt: str
    source: str
    seed: int | None
    scores: dict[str, float]
    drift: dict[str, float]


@dataclass(frozen=True)
class Run:
    """A run folder, read once."""

    path: Path
    config: dict[str, Any]
    state: dict[str, Any]
    metrics: Metrics
    evals: list[Evaluation]
    _pictures: dict[Path, dict[int, Picture]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def rewards(self) -> list[str]:
        """Trained rewards in the recipe's order."""
        return self.record.rewards or self.metrics.names("reward/", "/mean")

    @cached_property
    def pursued(self) -> list[str]:
        """Rewards that had a say in some update so far: those whose coefficient was not 0.

        A recipe may list rewards that its method leaves out (`single`, an early stage of
        `sequential`); these are scored, but nothing was trained on them.
        """
        columns = {name: self.metrics.get(f"coefficient/{name}") for name in self.rewards}
        found = [name for name, column in columns.items() if np.nansum(np.abs(column)) > 0]
        return found or self.rewards

    @cached_property
    def heldout(self) -> list[str]:
        """Every other score an evaluation gave: held out by the recipe, or by its method."""
        idle = [name for name in self.rewards if name not in self.pursued]
        seen = [name for e in self.evals for name in e.names()]
        return list(dict.fromkeys([*idle, *(n for n in seen if n not in self.rewards)]))

    @property
    def method(self) -> str:
        return self.record.method

    @property
    def step(self) -> int:
        return int(self.metrics.steps[-1]) if len(self.metrics.steps) else 0

    @property
    def total_steps(self) -> int | None:
        total = self.state.get("steps") or (self.config.get("train") or {}).get("steps")
        return int(total) if isinstance(total, int | float) else None

    @property
    def status(self) -> str:
        """As run.json says; without it, whether the last logged step is the last one planned."""
        if isinstance(self.state.get("status"), str):
            return str(self.state["status"])
        done = self.total_steps is not None and self.step >= self.total_steps
        return "finished" if done else "unfinished"

    @property
    def base(self) -> Evaluation | None:
        return self.record.base

    @property
    def trained(self) -> list[Evaluation]:
        return [e for e in self.evals if e.policy != "base"]

    def pictures(self, evaluation: Evaluation) -> dict[int, Picture]:
        """An evaluation's pictures by id, read once."""
        if evaluation.folder not in self._pictures:
            self._pictures[evaluation.folder] = read_pictures(evaluation.folder)
        return self._pictures[evaluation.folder]

    @cached_property
    def record(self) -> RunRecord:
        """The same run for `marble.evaluation`, its metrics cut down to what that reads."""
        wanted = {f"{kind}/{part}" for kind in KINDS for part in ("min", "mean", "var")}
        wanted |= {key for key in self.metrics.columns if key.startswith("time/")}
        columns = {k: v for k, v in self.metrics.columns.items() if k in wanted}
        rows = [
            {key: float(column[i]) for key, column in columns.items() if math.isfinite(column[i])}
            for i in range(len(self.metrics.steps))
        ]
        return RunRecord(self.path, self.config, rows, self.evals, self.state)


def read_run(path: Path) -> Run:
    """Read a run folder; a folder that is none is the user's mistake, said in one line."""
    path = run_folder(path)
    return Run(
        path=path,
        config=read_config(path / "config.yaml"),
        state=read_json(path / "run.json"),
        metrics=read_metrics(path / "metrics.jsonl"),
        evals=_read_evals(path),
    )


def read_metrics(path: Path) -> Metrics:
    """Line by line into columns: 10,000 steps of 32 rewards as rows would take half a gigabyte."""
    last_row: dict[int, int] = {}
    cells: dict[str, tuple[array[int], array[float]]] = {}
    for i, row in enumerate(_lines(path)):
        step = step_of(row)
        if step is None:
            continue
        last_row[step] = i
        for key, value in row.items():
            if type(value) is float or type(value) is int:
                cell = cells.get(key)
                if cell is None:
                    cell = cells[key] = (array("l"), array("d"))
                cell[0].append(i)
                cell[1].append(value)
    steps = sorted(last_row)
    rows = np.array([last_row[step] for step in steps], dtype=np.int64)
    columns = {}
    for key, (at, values) in cells.items():
        full = np.full(int(rows.max()) + 1, np.nan)
        full[np.frombuffer(at, dtype=np.dtype("l"))] = np.frombuffer(values, dtype=np.float64)
        column = full[rows]
        column[~np.isfinite(column)] = np.nan
        columns[key] = column
    return Metrics(np.array(steps, dtype=np.int64), columns)


def read_pictures(folder: Path) -> dict[int, Picture]:
    """The pictures an index.json lists, by id; those whose file is not there are left out."""
    found = {}
    for entry in entries(read_json(folder / "index.json").get("samples")):
        file = folder / Path(str(entry.get("file", ""))).name
        if type(entry.get("id")) is int and file.is_file():
            found[entry["id"]] = Picture(
                id=entry["id"],
                file=file,
                prompt=str(entry.get("prompt", "")),
                source=str(entry.get("source") or "unknown"),
                seed=entry.get("seed"),
                scores=numbers(entry.get("scores")),
                drift=numbers(entry.get("drift") or entry.get("canaries")),
            )
    return found


def read_advantages(run: Run) -> Iterator[dict[str, Any]]:
    """The logged advantage tables in step order; a file still being written is left out."""
    for file in sorted((run.path / "advantages").glob("step-*.json")):
        table = read_json(file)
        if isinstance(table.get("advantage"), list) and isinstance(table.get("samples"), list):
            yield table


def latest_samples(run: Run) -> tuple[int, dict[int, Picture]]:
    """Step and pictures of the newest folder under samples/; 0 and nothing without one."""
    for folder in sorted((run.path / "samples").glob("step-*"), reverse=True):
        digits, pictures = folder.name.removeprefix("step-"), read_pictures(folder)
        if digits.isdigit() and pictures:
            return int(digits), pictures
    return 0, {}


def _read_evals(path: Path) -> list[Evaluation]:
    found: dict[tuple[bool, int], Evaluation] = {}
    for row in read_jsonl(path / "evals.jsonl"):
        if step_of(row) is not None:
            evaluation = evaluation_of(path, row)
            found[evaluation.policy != "base", evaluation.step] = evaluation
    return [found[key] for key in sorted(found)]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = parse_json(line)
            except ValueError:
                continue  # the line being written now, or the one a crash cut short
            if isinstance(row, dict):
                yield row
