"""Read a run folder as it is: finished or not, with whatever lines and files have arrived.

Every reader here is tolerant. A missing file is an empty answer, a truncated last line is left
out, a step written twice (a resumed run) counts once, with its later values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from marble.errors import MarbleError

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
class Sample:
    """One picture of an evaluation."""

    id: int
    file: Path
    prompt: str
    source: str
    seed: int | None
    scores: dict[str, float]
    canaries: dict[str, float]


@dataclass(frozen=True)
class Score:
    """A mean over an evaluation's prompts with its interval; NaN bounds where not given."""

    mean: float
    lo: float = math.nan
    hi: float = math.nan
    n: int = 0


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: means by reward, and its pictures by id."""

    step: int
    scores: dict[str, Score]
    folder: Path

    @cached_property
    def samples(self) -> dict[int, Sample]:
        return {sample.id: sample for sample in read_samples(self.folder)}


@dataclass(frozen=True)
class Run:
    """A run folder, read once."""

    path: Path
    name: str
    config: dict[str, Any]
    state: dict[str, Any]
    metrics: Metrics
    evals: list[Evaluation] = field(default_factory=list)

    @cached_property
    def rewards(self) -> list[str]:
        """Trained rewards, in the recipe's order; from the metrics where the recipe is missing."""
        named = _names(self.config, "train")
        return named or self.metrics.names("reward/", "/mean")

    @cached_property
    def heldout(self) -> list[str]:
        named = _names(self.config, "heldout")
        seen = [name for e in self.evals for name in e.scores]
        return list(dict.fromkeys(n for n in [*named, *seen] if n not in self.rewards))

    @property
    def method(self) -> str:
        return str(_section(self.config, "balance").get("method") or "unknown method")

    @property
    def step(self) -> int:
        return int(self.metrics.steps[-1]) if len(self.metrics.steps) else 0

    @property
    def total_steps(self) -> int | None:
        total = self.state.get("steps") or _section(self.config, "train").get("steps")
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
        return next((e for e in self.evals if e.step == 0), None)

    @property
    def trained(self) -> list[Evaluation]:
        return [e for e in self.evals if e.step > 0]


def read_run(path: Path) -> Run:
    """Read a run folder; a folder that is none is the user's mistake, said in one line."""
    path = Path(path)
    if not path.is_dir():
        raise MarbleError(f"{path} is not a folder; give a run folder written by `marble train`")
    if not any((path / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
        raise MarbleError(
            f"{path} is not a run folder: it has neither config.yaml nor metrics.jsonl; "
            "give a folder written by `marble train`"
        )
    return Run(
        path=path,
        name=path.resolve().name,
        config=_read_yaml(path / "config.yaml"),
        state=_read_json(path / "run.json"),
        metrics=read_metrics(path / "metrics.jsonl"),
        evals=_read_evals(path),
    )


def read_metrics(path: Path) -> Metrics:
    rows: dict[int, dict[str, Any]] = {}
    for row in _lines(path):
        step = row.get("step")
        if isinstance(step, int):
            rows[step] = row
    steps = sorted(rows)
    columns: dict[str, Floats] = {}
    for i, step in enumerate(steps):
        for key, value in rows[step].items():
            if type(value) is float or type(value) is int:
                column = columns.get(key)
                if column is None:
                    column = columns[key] = np.full(len(steps), np.nan)
                column[i] = value
    for column in columns.values():
        column[~np.isfinite(column)] = np.nan
    return Metrics(np.array(steps, dtype=np.int64), columns)


def read_samples(folder: Path) -> list[Sample]:
    """The pictures an index.json lists; those whose file is not there yet are left out."""
    index = _read_json(folder / "index.json")
    samples = []
    for entry in index.get("samples") or []:
        file = folder / Path(str(entry.get("file", ""))).name
        if not isinstance(entry.get("id"), int) or not file.is_file():
            continue
        samples.append(
            Sample(
                id=entry["id"],
                file=file,
                prompt=str(entry.get("prompt", "")),
                source=str(entry.get("source") or "unknown"),
                seed=entry.get("seed"),
                scores=_numbers(entry.get("scores")),
                canaries=_numbers(entry.get("canaries")),
            )
        )
    return samples


def read_advantages(run: Run) -> Iterator[dict[str, Any]]:
    """The logged advantage tables in step order; a file still being written is left out."""
    for file in sorted((run.path / "advantages").glob("step-*.json")):
        table = _read_json(file)
        if isinstance(table.get("advantage"), list) and isinstance(table.get("samples"), list):
            yield table


def step_folders(run: Run, kind: str) -> dict[int, Path]:
    """Folders named step-NNNNNN under a run's sub-folder, by step."""
    found = {}
    for folder in sorted((run.path / kind).glob("step-*")):
        digits = folder.name.removeprefix("step-")
        if digits.isdigit():
            found[int(digits)] = folder
    return found


def _read_evals(path: Path) -> list[Evaluation]:
    found: dict[int, Evaluation] = {}
    for row in _lines(path / "evals.jsonl"):
        step = row.get("step")
        if not isinstance(step, int):
            continue
        # The base is step 0 whatever step it was measured at.
        step = 0 if row.get("policy") == "base" else step
        scores = {
            name: _score(value)
            for part in ("rewards", "heldout")
            for name, value in (row.get(part) or {}).items()
            if isinstance(value, dict) and isinstance(value.get("mean"), int | float)
        }
        folder = path / str(row.get("folder") or f"evals/step-{step:06d}")
        found[step] = Evaluation(step, scores, folder)
    return [found[step] for step in sorted(found)]


def _score(value: dict[str, Any]) -> Score:
    lo, hi = value.get("lo"), value.get("hi")
    return Score(
        float(value["mean"]),
        math.nan if lo is None else float(lo),
        math.nan if hi is None else float(hi),
        int(value.get("n") or 0),
    )


def _names(config: dict[str, Any], part: str) -> list[str]:
    entries = _section(config, "rewards").get(part)
    if not isinstance(entries, list):
        return []
    return [str(e["name"] if isinstance(e, dict) and "name" in e else e) for e in entries]


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _numbers(values: Any) -> dict[str, float]:
    """Finite numbers only: an inapplicable score is absent, never 0."""
    if not isinstance(values, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the line being written now, or the one a crash cut short
            if isinstance(row, dict):
                yield row


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return data if isinstance(data, dict) else {}
