"""Whether a run still improves: a fixed probe's scores, held against its base and its best.

The probe is small, so nothing is concluded from its mean alone: what counts is the interval of the
paired difference (same prompts, same seeds), resampled over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Criterion = Literal["worst", "mean"]

RESAMPLES = 1000
SURE = 3.5
"""Standard errors by which the probe must be below its best, at `IN_A_ROW` probes one after the
other. Strict, because the best is the luckiest of many: a model that stands still is told to have
fallen in fewer than one of a hundred runs of 20 probes."""
CLOSE = 2.0
"""Standard errors within which a later probe is as good as the highest: training improves, and the
highest of several noisy values is mostly the luckiest."""
IN_A_ROW = 2
LEAST_PROMPTS = 8
"""That a reward must apply to before its fall is believed: resampling fewer says too little."""
LEAST_DIVERSITY = 0.5
"""Of the base's: a model that draws one picture per prompt has collapsed whatever it scores."""


@dataclass(frozen=True)
class Look:
    """What one probe says."""

    step: int
    gains_K: Floats
    """Relative gains over the base, in standard deviations of its scores."""
    value: float
    """The criterion: the least of the gains, or their mean."""
    best: bool
    """Not clearly below the highest value so far: the checkpoint to keep."""
    fell: str | None
    """What fell, in words, once it is clear."""
    diversity: float
    """Relative to the base's."""


class Watch:
    """Follows the probe of one run. All processes see the same scores and conclude the same.

    names, counted: the rewards, and which of them are trained on (`single` trains on one).
    prompts: of each picture of the probe; pictures of one prompt are resampled together.
    """

    def __init__(
        self,
        names: Sequence[str],
        prompts: Sequence[str],
        *,
        counted: Sequence[int] | None = None,
        criterion: Criterion = "worst",
    ) -> None:
        self.names, self.criterion = list(names), criterion
        self.counted = list(range(len(names)) if counted is None else counted)
        self.left_out: list[int] = []
        """Of those, the ones that cannot rise together: see `leave_out`."""
        order = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        self._cluster = np.array([order[prompt] for prompt in prompts])
        self._base: Floats | None = None
        self._base_diversity = float("nan")
        self._peak: Floats | None = None
        self.peak_value = float("-inf")
        self.peak_step = 0
        self.best_step: int | None = None
        self.doubts = 0
        """Probes in a row that were clearly below the best."""
        self.rollbacks = 0

    @property
    def started(self) -> bool:
        return self._base is not None

    def start(self, base_Kn: Floats, diversity: float) -> None:
        """Takes the untouched model's scores on the probe: it is the first best."""
        self._base, self._base_diversity = np.array(base_Kn, dtype=np.float64), diversity
        self._peak, self.peak_value, self.peak_step = self._base, 0.0, 0

    def leave_out(self, rewards: Sequence[int]) -> bool:
        """Rewards that cancel out judge no more: the least of their gains falls as the model learns
        either. Whether that changed anything; of all rewards left out, none would judge."""
        rest = [k for k in self.counted if k not in rewards]
        if not rest or len(rest) == len(self.counted):
            return False
        self.left_out += [k for k in self.counted if k in rewards]
        self.counted, self.doubts = rest, 0
        if self._peak is not None:
            self.peak_value = self._value(self._gains(self._peak))
        return True

    def look(self, step: int, scores_Kn: Floats, diversity: float) -> Look:
        """Judges the scores of a probe taken after `step`."""
        assert self._base is not None and self._peak is not None
        scores = np.asarray(scores_Kn, dtype=np.float64)
        gains = self._gains(scores)
        value = self._value(gains)
        differences = self._resampled(scores) - self._resampled(self._peak)
        highest = value > self.peak_value
        # The first one too, so that there always is a best checkpoint.
        tolerance = CLOSE * float(differences.std())
        best = self.best_step is None or value >= self.peak_value - tolerance
        variety = diversity / self._base_diversity if self._base_diversity > 0 else float("nan")
        below = bool(differences.mean() + SURE * differences.std() < 0)
        below &= self._prompts_of(self._lowest(gains)) >= LEAST_PROMPTS
        alike = variety < LEAST_DIVERSITY
        best &= not alike or self.best_step is None
        self.doubts = self.doubts + 1 if below or alike else 0
        fell = None
        times, rest = divmod(self.doubts, IN_A_ROW)
        if rest == 0 and times.bit_count() == 1:  # and again after twice as long
            fell = self._words(step, gains, value, variety, below)
        if best:
            self.best_step = step
            if highest:
                self._peak, self.peak_value, self.peak_step = scores, value, step
        return Look(step, gains, value, best, fell, variety)

    def row(self, look: Look) -> dict[str, float]:
        """For `metrics.jsonl`."""
        gains = {f"probe/{name}": float(g) for name, g in zip(self.names, look.gains_K)}
        known = [g for g in look.gains_K[self.counted] if np.isfinite(g)]
        summary = (
            {"probe/worst": min(known), "probe/mean": sum(known) / len(known)} if known else {}
        )
        return gains | summary | {"probe/diversity": look.diversity}

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """JSON types; a score that does not apply is null."""
        return {
            "base": _to_json(self._base),
            "base_diversity": self._base_diversity,
            "peak": _to_json(self._peak),
            "peak_value": None if np.isinf(self.peak_value) else self.peak_value,
            "peak_step": self.peak_step,
            "best_step": self.best_step,
            "doubts": self.doubts,
            "rollbacks": self.rollbacks,
            "left_out": self.left_out,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._base, self._peak = _from_json(state["base"]), _from_json(state["peak"])
        self._base_diversity = state["base_diversity"]
        value = state["peak_value"]
        self.peak_value = float("-inf") if value is None else value
        for key in ("peak_step", "best_step", "doubts", "rollbacks"):
            setattr(self, key, state[key])
        every = {*self.counted, *self.left_out}
        self.left_out = list(state.get("left_out", []))  # older states have none
        self.counted = sorted(every - set(self.left_out))

    # -- inside -----------------------------------------------------------------------------------

    def _gains(self, scores: Floats) -> Floats:
        assert self._base is not None
        return _mean(scores - self._base) / self._spread()

    def _spread(self) -> Floats:
        assert self._base is not None
        centred = self._base - _mean(self._base)[:, None]
        spread = np.sqrt(_mean(centred**2))
        return np.where(spread > 1e-12, spread, np.nan)

    def _value(self, gains: Floats) -> float:
        known = gains[self.counted]
        known = known[np.isfinite(known)]
        if not len(known):
            return 0.0
        return float(known.min() if self.criterion == "worst" else known.mean())

    @cached_property
    def _weight(self) -> Floats:
        """How often each picture is in each resample of the prompts; [RESAMPLES, n]."""
        count = int(self._cluster.max()) + 1
        rng = np.random.default_rng(0)
        draws = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
        return draws[:, self._cluster].astype(np.float64)

    def _lowest(self, gains: Floats) -> int:
        return min(self.counted, key=lambda k: float(np.nan_to_num(gains[k], nan=np.inf)))

    def _prompts_of(self, k: int) -> int:
        """How many of the probe's prompts a reward applies to."""
        assert self._base is not None
        return len(np.unique(self._cluster[np.isfinite(self._base[k])]))

    def _resampled(self, scores: Floats) -> Floats:
        """The criterion over resamples of the prompts, always the same ones; [RESAMPLES]."""
        assert self._base is not None
        weight = self._weight
        delta = (scores - self._base)[self.counted] / self._spread()[self.counted, None]
        delta = delta[np.isfinite(delta).any(axis=1)]  # a reward that nowhere applies
        if not len(delta):
            return np.zeros(RESAMPLES)
        known = np.isfinite(delta)
        total = np.maximum(weight @ known.T, 1e-12)  # none of its prompts drawn: no gain
        gains = (weight @ np.where(known, delta, 0.0).T) / total
        return np.asarray(gains.min(axis=1) if self.criterion == "worst" else gains.mean(axis=1))

    def _words(self, step: int, gains: Floats, value: float, variety: float, below: bool) -> str:
        what = "the least relative gain" if self.criterion == "worst" else "the mean relative gain"
        parts = []
        if below:
            lowest = self._lowest(gains)
            best = f"its best ({self.peak_value:+.2f} σ at step {self.peak_step})"
            parts.append(
                f"{what} on the held-out probe is {value:+.2f} σ ({self.names[lowest]} "
                f"{gains[lowest]:+.2f} σ), clearly below "
                f"{best if self.peak_step else 'the untouched model'}, "
                f"{self.doubts} probes in a row"
            )
        if variety < LEAST_DIVERSITY:
            parts.append(f"pictures of one prompt differ {variety:.0%} as much as the base's")
        return "; ".join(parts)


def _mean(table: Floats) -> Floats:
    """Of each row's finite values; NaN without any."""
    known = np.isfinite(table)
    total = known.sum(axis=1)
    sums = np.where(known, table, 0.0).sum(axis=1)
    return np.where(total > 0, sums / np.maximum(total, 1), np.nan)


def _to_json(table: Floats | None) -> list[list[float | None]] | None:
    if table is None:
        return None
    return [[None if np.isnan(x) else float(x) for x in row] for row in table]


def _from_json(rows: list[list[float | None]] | None) -> Floats | None:
    if rows is None:
        return None
    return np.array([[np.nan if x is None else x for x in row] for row in rows], dtype=np.float64)
