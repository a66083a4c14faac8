"""How well a run's updates agreed with every reward, from its `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from marble.evaluation.reading import number

KINDS = ("harmony", "harmony_heldout", "harmony_applied")
"""Cosines of the rewards' gradients with the direction, with the direction on micro-batches that
were not used to solve, and with the step the optimiser really took."""


@dataclass(frozen=True)
class Harmony:
    """Over the steps that measured it: mean of the worst cosine, of the mean, of the variance."""

    min: float
    mean: float
    var: float
    conflict_rate: float
    """Share of those steps whose worst cosine is negative."""
    n: int

    def record(self) -> dict[str, float | int | None]:
        """For JSON: None where nothing was measured."""
        return {k: None if np.isnan(v) else v for k, v in asdict(self).items()}


def harmony(rows: Iterable[Mapping[str, Any]], kind: str = "harmony") -> Harmony:
    """Summary of one kind of harmony; NaN and n = 0 where it was never measured."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    keys = [f"{kind}/{part}" for part in ("min", "mean", "var")]
    found = [[number(row.get(key)) for key in keys] for row in rows]
    table = np.array(found, dtype=np.float64).reshape(-1, 3)
    table = table[np.isfinite(table[:, 0])]
    if not len(table):
        return Harmony(np.nan, np.nan, np.nan, np.nan, 0)
    low, mean, var = (_mean(column) for column in table.T)
    return Harmony(low, mean, var, float(np.mean(table[:, 0] < 0)), len(table))


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


def conflicts(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Mean cosine of every pair of rewards' gradients, from the `cos/A|B` keys."""
    sums: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith("cos/") and "|" in key and isinstance(value, int | float):
                first, second = key.removeprefix("cos/").split("|", 1)
                sums.setdefault((first, second), []).append(float(value))
    return {pair: float(np.nanmean(values)) for pair, values in sums.items()}
