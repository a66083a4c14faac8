"""Progress weights: more to the rewards that have gained less. No gradients needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from marble.errors import MarbleError
from marble.options import Count, Decay, NonNegative, PositiveInt, Section

from ._linalg import Array, from_json, to_json
from ._paired import PairedScores, shrunk
from ._redundancy import Redundancy
from ._rule import FreeRule

# A move of this many standard errors counts as a full response.
_RESPONSE = 3.0
# Progress is measured against at least this share of a reward's range, however near its ceiling.
_HEADROOM = 0.05
# A reward without trust or support keeps this share of its weight.
_LEAST_TRUST = 0.05
# Valid steps before the gate begins.
_GATE_AFTER = 30
# Epochs between reminders that a reward has almost no weight.
_REMIND_EVERY = 50


class Progress(FreeRule):
    """c = softmax(−β p), p_k the progress of reward k since the start, on the raw gradients.

        R̄_k ← m R̄_k + (1−m)·(batch mean over valid samples),   p_k = (R̄_k − R_k(0)) / unit_k

    R_k(0) is the mean of the reward's first `warmup` steps, from which R̄_k also starts; until
    then p_k is unknown and counts as the average of the known ones.

    units: "std" measures progress in the batch std of the first steps (a reward without spread
        then takes the first one it shows), "range" as the share of the way from R_k(0) to the
        reward's ceiling, for which `ranges` gives (lowest, highest) per reward.
    window: once `observe_pairs` was called (see `PairedScores`), p_k is measured on those of the
        last `window` epochs instead, shrunk by its standard error and the trust in it.

    redundancy: power q of the redundancy weights that multiply c_k; a reward that more rewards
        oppose than support gets almost none (see `Redundancy`); 0: off.
    gate: unlearnable rewards make no progress and would absorb weight. From 30
        observations on, a reward's p_k counts only as far as it responds: with z the move of R̄_k
        in standard errors (noise from successive differences of the batch means),
        p_k → γp_k + (1−γ)·average with γ = min(1, (z/3)²).
    """

    name = "progress"
    observes = True
    prioritised = True

    class Options(Section):
        """c = softmax(−β p), p_k = (R̄_k − R_k(0)) / unit_k: the reward that lags gets more."""

        beta: NonNegative = Field(default=12.0, description="Sharpness of the softmax.")
        units: Literal["std", "range"] = Field(
            default="std",
            description="Progress in the reward's own initial std, or its declared range (not by "
            "paired samples).",
        )
        gate: bool = Field(
            default=False,
            description="Turn down rewards that do not respond to the weight they get (not by "
            "paired samples, which tell noise by themselves).",
        )
        decay: Decay = Field(default=0.9, description="Decay of the running mean R̄.")
        warmup: PositiveInt = Field(
            default=5, description="Steps whose mean is R(0); uniform until then."
        )
        paired: Count = Field(
            default=36,
            description="Pictures per epoch that the base draws too, from the same seeds: "
            "progress is measured on these paired samples; 0: on the batches' means.",
        )
        window: PositiveInt = Field(
            default=8, description="Epochs whose paired samples are looked at."
        )
        redundancy: NonNegative = Field(
            default=4.0,
            description="Rewards whose advantages agree share a total weight of two, "
            "min(1, 2/Σ_j max(0, cos)^this); one that more rewards oppose than support gets almost "
            "none. The higher, the more similar duplicates must be; 0: off.",
        )
        ranges: list[tuple[float, float]] | None = Field(
            default=None,
            description="(lowest, highest) per reward, for units: range; a recipe takes them from "
            "the rewards.",
        )

        @field_validator("ranges", mode="before")
        @classmethod
        def _pairs(cls, value: Any) -> Any:
            if not isinstance(value, list | tuple | np.ndarray):
                return value  # not a list: said in the usual words
            return [tuple(pair) if isinstance(pair, list | np.ndarray) else pair for pair in value]

    _STATE = ("seen", "start", "variance", "mean", "last", "noise")
    _seen: Array  # valid steps so far
    _start: Array  # R_k(0)
    _variance: Array  # of the samples, in the first steps
    _mean: Array  # R̄_k
    _last: Array  # the last batch mean
    _noise: Array  # variance of a batch mean

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        o = self.options
        self.scores = PairedScores(o.window)
        self.redundancy: Redundancy | None = None
        self._ranges = None if o.ranges is None else np.array(o.ranges, dtype=np.float64)
        if o.units == "range" and self._ranges is None:
            raise MarbleError("progress: units 'range' needs ranges, (lowest, highest) per reward.")
        if self._ranges is not None and (
            self._ranges.ndim != 2
            or self._ranges.shape[1] != 2
            or not np.isfinite(self._ranges).all()
            or (self._ranges[:, 0] >= self._ranges[:, 1]).any()
        ):
            raise MarbleError("progress: each range is (lowest, highest), finite and in order.")
        self._begin(0)

    @classmethod
    def pairs(cls, options: Any) -> int:
        return int(options.paired)

    @property
    def beta(self) -> float:
        return float(self.options.beta)

    # -- observing ------------------------------------------------------------------------------

    def observe(
        self,
        means_K: Array,
        stds_K: Array,
        counts_K: Array | None = None,
        advantages_KN: Array | None = None,
    ) -> None:
        mean = np.array(means_K, dtype=np.float64)
        std = np.array(stds_K, dtype=np.float64)
        valid = np.isfinite(mean) & np.isfinite(std)
        if counts_K is not None:
            valid &= np.asarray(counts_K) > 0
        if len(self._seen) == 0:
            self._begin(len(mean))
        if self.redundancy is not None and advantages_KN is not None:
            self.redundancy.observe(advantages_KN)
        first, learning = valid & (self._seen == 0), valid & (self._seen < self.options.warmup)
        # Half the squared difference of successive means is their variance, whatever the trend.
        jump = np.where(valid & ~first, 0.5 * (mean - self._last) ** 2, 0.0)
        smoothed = np.where(self._seen == 1, jump, 0.9 * self._noise + 0.1 * jump)
        self._noise = np.where(valid & ~first, smoothed, self._noise)
        self._last = np.where(valid, mean, self._last)

        share = 1.0 / (self._seen + 1.0)
        self._start += np.where(learning, share * (mean - self._start), 0.0)
        self._variance += np.where(learning, share * (std**2 - self._variance), 0.0)
        without_spread = valid & ~learning & (self._variance == 0.0)
        self._variance = np.where(without_spread, std**2, self._variance)

        followed = self.options.decay * self._mean + (1.0 - self.options.decay) * mean
        self._mean = np.where(learning, self._start, np.where(valid, followed, self._mean))
        self._seen = self._seen + valid

    def observe_pairs(self, now_Kn: Array, base_Kn: Array) -> dict[str, Array]:
        """Progress is measured by paired samples from now on."""
        if len(self._seen) == 0:
            self._begin(len(now_Kn))
        self.scores.add(now_Kn, base_Kn)
        return {"progress": self.progress(), "progress_trust": self.trust()}

    def _begin(self, k: int) -> None:
        for name in self._STATE:
            setattr(self, f"_{name}", np.zeros(k))
        self.redundancy = (
            Redundancy(k, self.options.redundancy) if k and self.options.redundancy else None
        )

    # -- weights --------------------------------------------------------------------------------

    def progress(self) -> Array:
        """p_k, NaN while unknown."""
        if self.scores:
            return self.scores.measured().p_K
        if self.options.units == "std":
            unit = np.sqrt(self._variance)
        else:
            assert self._ranges is not None
            low, high = self._ranges.T
            unit = np.maximum(high - self._start, _HEADROOM * (high - low))
        known = (self._seen >= self.options.warmup) & (unit > 0.0)
        moved = (self._mean - self._start) / np.where(known, unit, 1.0)
        return np.asarray(np.where(known, moved, np.nan))

    def response(self) -> Array:
        """γ_k in [0, 1]: how surely the reward has moved; 1 before the gate begins."""
        if not self.options.gate:
            return np.ones(len(self._seen))
        spread = (1.0 - self.options.decay) / (1.0 + self.options.decay) + 1.0 / self.options.warmup
        error = np.sqrt(self._noise * spread)
        moved = np.abs(self._mean - self._start)
        certain = np.minimum((moved / np.where(error > 0.0, _RESPONSE * error, 1.0)) ** 2, 1.0)
        certain = np.where(error > 0.0, certain, np.where(moved > 0.0, 1.0, 0.0))
        return np.asarray(np.where(self._seen >= _GATE_AFTER, certain, 1.0))

    def trust(self) -> Array:
        """0 to 1: trust by paired scores, times support by the other rewards."""
        support = np.ones(len(self._seen))
        if self.redundancy is not None:
            support = self.redundancy.support_K
        return support * self.scores.measured().trust_K if self.scores else support

    def doubts(self, names: Sequence[str], epoch: int) -> list[str]:
        """Rewards with almost no weight, and why: once the window is full, then now and then."""
        since = epoch - self.options.window
        if len(self._seen) == 0 or since < 0 or since % _REMIND_EVERY:
            return []
        opposed = np.zeros(len(names), dtype=bool)
        if self.redundancy is not None:
            opposed = self.redundancy.support_K <= _LEAST_TRUST
        noise = (self.trust() <= _LEAST_TRUST) & ~opposed
        told = [
            (opposed, "is opposed by more rewards than support it (cosines of advantages)"),
            (
                noise,
                "looks like noise (its scores of a trained picture and of the base's picture of "
                "the same prompt and seed are uncorrelated)",
            ),
        ]
        return [
            f"Reward {name} {why}: it keeps {_LEAST_TRUST:.0%} of its weight."
            for who, why in told
            for name, so in zip(names, who)
            if so
        ]

    def judged(self, k: int) -> Array:
        """p_k as it counts: unknown, unresponsive, noisy or opposed ones moved to the average."""
        if len(self._seen) == 0:
            return np.zeros(k)
        if self.scores:
            measured = self.scores.measured()
            return shrunk(measured.p_K, measured.error_K, self.trust())
        p = self.progress()
        gate = np.where(np.isnan(p), 0.0, self.response() * self.trust())
        p = np.where(np.isnan(p), 0.0, p)
        average = float(gate @ p / gate.sum()) if gate.sum() > 0.0 else 0.0
        return np.asarray(gate * p + (1.0 - gate) * average)

    def current(self, preference: Array) -> Array:
        if self._ranges is not None and len(self._ranges) != len(preference):
            raise MarbleError(
                f"progress: {len(self._ranges)} ranges for {len(preference)} rewards."
            )
        p = self.judged(len(preference))
        weight = preference * np.exp(-self.beta * (p - p.min()))
        if self.redundancy is not None:
            weight = weight * self.redundancy.weight_K
        if len(self._seen):
            weight = weight * np.maximum(self.trust(), _LEAST_TRUST)
        return np.asarray(weight / weight.sum())

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if len(self._seen) == 0:
            return {}
        kept = {key: to_json(getattr(self, f"_{key}")) for key in self._STATE}
        cosines = {} if self.redundancy is None else self.redundancy.state_dict()
        return kept | {"pairs": self.scores.state_dict(), "redundancy": cosines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begin(0)
        if state:
            self._begin(len(state["seen"]))
        for key in self._STATE:
            if key in state:
                setattr(self, f"_{key}", from_json(state[key]))
        self.scores.load_state_dict(state.get("pairs", state.get("twins", {})))
        if self.redundancy is not None and state.get("redundancy"):
            self.redundancy.load_state_dict(state["redundancy"])
