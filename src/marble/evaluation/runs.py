"""Run folders as numbers. A line that a crash cut short, or is being written, is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble.errors import MarbleError
from marble.evaluation.reading import (
    entries,
    evaluation_record,
    inside,
    numbers,
    parse_json,
    read_config,
    read_json,
    run_folder,
    step_of,
)

Floats = NDArray[np.float64]


def _present(line: str) -> str:
    """A line of metrics with the keys of today, so that runs of earlier versions can be shown."""
    return line.replace('"canary/', '"drift/').replace('"time/twins"', '"time/paired"')


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The whole objects of a JSONL file; [] where there is no file.

    Only the last line may be broken: a run that was killed leaves that and nothing else.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise MarbleError(f"{path}: cannot be read ({error.strerror})") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(_present(line))
        except ValueError:
            if any(rest.strip() for rest in lines[number:]):
                raise MarbleError(f"{path}:{number}: damaged line in the middle") from None
            break
        if isinstance(row, dict):
            rows.append(row)
    return rows


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: its step, its policy (`base` or `trained`), and every picture's scores."""

    step: int
    policy: str
    record: dict[str, Any]
    folder: Path

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """Entries of the folder's index, in its order; [] where the pictures are gone."""
        return entries(read_json(self.folder / "index.json").get("samples"))

    def mean(self, name: str) -> float:
        """The recorded mean of a score, NaN where it has none."""
        for part in ("rewards", "heldout"):
            entry = (self.record.get(part) or {}).get(name)
            if isinstance(entry, dict) and entry.get("mean") is not None:
                return float(entry["mean"])
        return float("nan")

    def names(self) -> list[str]:
        return [n for part in ("rewards", "heldout") for n in (self.record.get(part) or {})]


@dataclass(frozen=True)
class RunRecord:
    """What a comparison needs of a run folder."""

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    evals: list[Evaluation]
    status: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def method(self) -> str:
        return str((self.config.get("balance") or {}).get("method", "?"))

    @property
    def rewards(self) -> list[str]:
        """Names of the training rewards."""
        entries = (self.config.get("rewards") or {}).get("train") or []
        return [str(e.get("name")) for e in entries if isinstance(e, dict)]

    @property
    def base(self) -> Evaluation | None:
        return next((e for e in self.evals if e.policy == "base"), None)

    @property
    def last(self) -> Evaluation | None:
        """The evaluation of what the run offers: its best checkpoint, else the latest."""
        trained = [e for e in self.evals if e.policy != "base"]
        best = self.status.get("best")
        step = best.get("step") if isinstance(best, dict) else None
        ended = self.status.get("status") in ("finished", "stopped")
        found = [e for e in trained if e.step == step] if ended else []
        return found[-1] if found else trained[-1] if trained else None

    @property
    def seconds(self) -> float:
        """Wall time: as the run says, else the sum of its logged phases."""
        told = self.status.get("seconds")
        if isinstance(told, int | float) and told > 0:
            return float(told)
        return float(sum(_times(self.metrics)))


def unjudged(run: str | Path) -> MarbleError:
    """For a run that cannot be compared yet."""
    return MarbleError(
        f"{run}: has no evaluation of the trained model yet; it comes at the end of the run, or "
        "every eval.every steps"
    )


def read_run(folder: str | Path) -> RunRecord:
    """A run folder, finished or not."""
    path = run_folder(folder)
    return RunRecord(
        path=path,
        config=read_config(path / "config.yaml"),
        metrics=read_jsonl(path / "metrics.jsonl"),
        evals=[evaluation_of(path, row) for row in read_jsonl(path / "evals.jsonl")],
        status=read_json(path / "run.json"),
    )


def score_tables(
    after: Evaluation, before: Evaluation, names: list[str]
) -> tuple[Floats, Floats, list[str]]:
    """([K, n] after, [K, n] before, prompts) over the pictures with the same prompt and seed."""
    drawn = {_key(entry): entry for entry in before.samples}
    pairs = [(e, drawn[_key(e)]) for e in after.samples if _key(e) in drawn]
    now = _table([entry for entry, _ in pairs], names)
    then = _table([entry for _, entry in pairs], names)
    return now, then, [str(entry.get("prompt", "")) for entry, _ in pairs]


def scores_of(evaluation: Evaluation, names: list[str]) -> dict[tuple[Any, Any], Floats]:
    """Scores [K] of every picture, by prompt and seed."""
    entries = evaluation.samples
    return {_key(e): row for e, row in zip(entries, _table(entries, names).T)}


def _table(entries: list[dict[str, Any]], names: list[str]) -> Floats:
    table = np.full((len(names), len(entries)), np.nan)
    for i, entry in enumerate(entries):
        scores = numbers(entry.get("scores"))
        for k, name in enumerate(names):
            table[k, i] = scores.get(name, np.nan)
    return table


def _key(entry: dict[str, Any]) -> tuple[Any, Any]:
    return str(entry.get("prompt")), str(entry.get("seed"))


def evaluation_of(path: Path, row: dict[str, Any]) -> Evaluation:
    """One line of the run's `evals.jsonl`."""
    step = step_of(row) or 0
    folder = inside(path, row.get("folder"), f"evals/step-{step:06d}")
    return Evaluation(step, str(row.get("policy", "trained")), evaluation_record(row), folder)


def _times(rows: list[dict[str, Any]]) -> Iterator[float]:
    for row in rows:
        for key, value in row.items():
            if key.startswith("time/") and isinstance(value, int | float):
                yield float(value)
