"""What each reward gained over the base model, picture by picture, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marble.evaluation.intervals import gain_interval
from marble.evaluation.measures import wins
from marble.evaluation.runs import Evaluation, score_tables


@dataclass(frozen=True)
class Gain:
    """One reward, base against one checkpoint, over the same prompts and seeds.

    `delta`, `lo` and `hi` are in the reward's own unit; `z` is `delta` / `spread`, in standard
    deviations of the base's pictures, so that rewards of different scales compare. `won` and
    `tied` are shares of the picture pairs.
    """

    name: str
    base: float
    after: float
    delta: float
    lo: float
    hi: float
    spread: float
    won: float
    tied: float
    n: int

    @property
    def z(self) -> float:
        if self.spread > 1e-12:
            return self.delta / self.spread
        return 0.0 if self.delta == 0 else math.nan

    @property
    def improved(self) -> bool:
        return self.lo > 0

    @property
    def fell(self) -> bool:
        return self.hi < 0

    @property
    def word(self) -> str:
        return "improved" if self.improved else "fell" if self.fell else "unclear"


def gains(base: Evaluation, after: Evaluation, names: Sequence[str]) -> list[Gain]:
    """The gain of each named reward; rewards that either side lacks are left out.

    Paired with a bootstrap over prompts where both sides have their pictures' scores; from the
    recorded means and intervals alone where those are gone.
    """
    now, then, prompts = score_tables(after, base, list(names))
    found = []
    for name, row, old, won in zip(names, now, then, wins(now, then)):
        known = np.isfinite(row) & np.isfinite(old)
        if not known.any():
            gain = _from_means(base, after, name)
            found += [gain] if gain else []
            continue
        interval = gain_interval(row, old, prompts)
        found.append(
            Gain(
                name=name,
                base=float(old[known].mean()),
                after=float(row[known].mean()),
                delta=interval.mean,
                lo=interval.lo,
                hi=interval.hi,
                spread=float(old[known].std()),
                won=won.won,
                tied=won.tied,
                n=interval.n,
            )
        )
    return found


def recorded(evaluation: Evaluation, name: str) -> tuple[float, float, float, int] | None:
    """(mean, lo, hi, n) of a score as evals.jsonl has them; None where it has no mean."""
    for part in ("rewards", "heldout"):
        entry: Any = (evaluation.record.get(part) or {}).get(name)
        if isinstance(entry, dict) and isinstance(entry.get("mean"), int | float):
            mean, lo, hi = (
                math.nan if entry.get(key) is None else float(entry[key])
                for key in ("mean", "lo", "hi")
            )
            return mean, lo, hi, int(entry.get("n") or 0)
    return None


def _from_means(base: Evaluation, after: Evaluation, name: str) -> Gain | None:
    """Unpaired: the two half-widths add in quadrature, the spread follows from the base's."""
    before, now = recorded(base, name), recorded(after, name)
    if before is None or now is None:
        return None
    delta = now[0] - before[0]
    half = math.hypot((before[2] - before[1]) / 2, (now[2] - now[1]) / 2)
    spread = (before[2] - before[1]) / 3.92 * math.sqrt(before[3])
    nan = math.nan
    return Gain(
        name, before[0], now[0], delta, delta - half, delta + half, spread, nan, nan, now[3]
    )
