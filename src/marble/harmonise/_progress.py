"""Progress weights: more to the rewards that have gained less. No gradients needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from marble.errors import MarbleError

from ._linalg import Array, from_json, to_json
from ._redundancy import Redundancy
from ._rule import ObservingRule
from ._twins import Twins, shrunk

# A move of this many standard errors counts as a full response.
_RESPONSE = 3.0
# Progress is measured against at least this share of a reward's range, however near its ceiling.
_HEADROOM = 0.05
# What is not believed keeps this share of its weight.
_LEAST_TRUST = 0.05


class Progress(ObservingRule):
    """c = softmax(−β p), p_k the progress of reward k since the start, on the raw gradients.

        R̄_k ← m R̄_k + (1−m)·(batch mean over valid samples),   p_k = (R̄_k − R_k(0)) / unit_k

    R_k(0) is the mean of the reward's first `warmup` steps, from which R̄_k also starts; until
    then p_k is unknown and counts as the average of the known ones.

    units: "std" measures progress in the batch std of the first steps (a reward without spread
        then takes the first one it shows), "range" as the share of the way from R_k(0) to the
        reward's ceiling, for which `ranges` gives (lowest, highest) per reward.
    window: once `compare` has been told of twins (see `Twins`), p_k is measured on those of the
        last `window` epochs instead, and counts as far as they are believed.

    redundancy: power q of the rewards' agreement, by which a crowd that agrees shares two votes,
        which multiply c_k, and one that most oppose is not believed (see `Redundancy`); 0: off.
    gate_after: unlearnable rewards make no progress and would absorb weight. From this many
        observations on, a reward's p_k counts only as far as it responds: with z the move of R̄_k
        in standard errors (noise from successive differences of the batch means),
        p_k → γp_k + (1−γ)·average with γ = min(1, (z/3)²). None switches the gate off.
    """

    name = "progress"

    _STATE = ("seen", "start", "variance", "mean", "last", "noise")
    _seen: Array  # valid steps so far
    _start: Array  # R_k(0)
    _variance: Array  # of the samples, in the first steps
    _mean: Array  # R̄_k
    _last: Array  # the last batch mean
    _noise: Array  # variance of a batch mean

    def __init__(
        self,
        *,
        beta: float = 0.5,
        units: Literal["std", "range"] = "std",
        ranges: Sequence[Sequence[float]] | None = None,
        momentum: float = 0.9,
        warmup: int = 5,
        gate_after: int | None = 30,
        window: int = 8,
        redundancy: float = 0.0,
    ) -> None:
        super().__init__()
        if not (np.isfinite(beta) and beta >= 0.0):
            raise MarbleError(f"progress: beta = {beta}; give a number of at least 0.")
        if units not in ("std", "range"):
            raise MarbleError(f"progress: units = {units!r}; choose 'std' or 'range'.")
        if not 0.0 <= momentum < 1.0 or warmup < 1:
            raise MarbleError("progress: give momentum in [0, 1) and warmup of at least 1.")
        if window < 1:
            raise MarbleError(f"progress: window = {window}; give at least one epoch.")
        if not (np.isfinite(redundancy) and redundancy >= 0.0):
            raise MarbleError(f"progress: redundancy = {redundancy}; give a power, or 0 for none.")
        if units == "range" and ranges is None:
            raise MarbleError("progress: units 'range' needs ranges, (lowest, highest) per reward.")
        self.beta, self.units, self.momentum, self.warmup = beta, units, momentum, warmup
        self.gate_after = gate_after
        self.twins = Twins(window)
        self._power = redundancy
        self.redundancy: Redundancy | None = None
        self._ranges = None if ranges is None else np.array(ranges, dtype=np.float64)
        if self._ranges is not None and (
            self._ranges.ndim != 2
            or self._ranges.shape[1] != 2
            or not np.isfinite(self._ranges).all()
            or (self._ranges[:, 0] >= self._ranges[:, 1]).any()
        ):
            raise MarbleError("progress: each range is (lowest, highest), finite and in order.")
        self._begin(0)

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
        first, learning = valid & (self._seen == 0), valid & (self._seen < self.warmup)
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

        followed = self.momentum * self._mean + (1.0 - self.momentum) * mean
        self._mean = np.where(learning, self._start, np.where(valid, followed, self._mean))
        self._seen = self._seen + valid

    def compare(self, now_Kn: Array, base_Kn: Array) -> None:
        """Takes the scores of twins, by which progress is measured from now on."""
        if len(self._seen) == 0:
            self._begin(len(now_Kn))
        self.twins.add(now_Kn, base_Kn)

    def _begin(self, k: int) -> None:
        for name in self._STATE:
            setattr(self, f"_{name}", np.zeros(k))
        self.redundancy = Redundancy(k, self._power) if k and self._power else None

    # -- weights --------------------------------------------------------------------------------

    def progress(self) -> Array:
        """p_k, NaN while unknown."""
        if self.twins:
            return self.twins.measured().p_K
        if self.units == "std":
            unit = np.sqrt(self._variance)
        else:
            assert self._ranges is not None
            low, high = self._ranges.T
            unit = np.maximum(high - self._start, _HEADROOM * (high - low))
        known = (self._seen >= self.warmup) & (unit > 0.0)
        moved = (self._mean - self._start) / np.where(known, unit, 1.0)
        return np.asarray(np.where(known, moved, np.nan))

    def response(self) -> Array:
        """γ_k in [0, 1]: how surely the reward has moved; 1 before the gate begins."""
        if self.gate_after is None:
            return np.ones(len(self._seen))
        spread = (1.0 - self.momentum) / (1.0 + self.momentum) + 1.0 / self.warmup
        error = np.sqrt(self._noise * spread)
        moved = np.abs(self._mean - self._start)
        certain = np.minimum((moved / np.where(error > 0.0, _RESPONSE * error, 1.0)) ** 2, 1.0)
        certain = np.where(error > 0.0, certain, np.where(moved > 0.0, 1.0, 0.0))
        return np.asarray(np.where(self._seen >= self.gate_after, certain, 1.0))

    def trust(self) -> Array:
        """0 to 1, how far a reward is believed: by its twins, and as far as it is not outvoted."""
        heard = np.ones(len(self._seen)) if self.redundancy is None else self.redundancy.heard_K
        return heard * self.twins.measured().trust_K if self.twins else heard

    def doubts(self, names: Sequence[str]) -> list[str]:
        """Rewards that hardly count, and why."""
        if len(self._seen) == 0:
            return []
        outvoted = np.zeros(len(names), dtype=bool)
        if self.redundancy is not None:
            outvoted = self.redundancy.heard_K <= _LEAST_TRUST
        noise = (self.trust() <= _LEAST_TRUST) & ~outvoted
        told = [
            (outvoted, "wants the opposite of what several others want, and is outvoted"),
            (noise, "looks like noise: it does not know a picture's twin again"),
        ]
        return [
            f"Reward {name} {why}: it keeps {_LEAST_TRUST:.0%} of its weight."
            for who, why in told
            for name, so in zip(names, who)
            if so
        ]

    def judged(self, k: int) -> Array:
        """p_k as it counts: unknown, unresponsive, noisy or outvoted ones moved to the average."""
        if len(self._seen) == 0:
            return np.zeros(k)
        if self.twins:
            measured = self.twins.measured()
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
            weight = weight * self.redundancy.votes_K
        if len(self._seen):
            weight = weight * np.maximum(self.trust(), _LEAST_TRUST)
        return np.asarray(weight / weight.sum())

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if len(self._seen) == 0:
            return {}
        kept = {key: to_json(getattr(self, f"_{key}")) for key in self._STATE}
        votes = {} if self.redundancy is None else self.redundancy.state_dict()
        return kept | {"twins": self.twins.state_dict(), "redundancy": votes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begin(0)
        if state:
            self._begin(len(state["seen"]))
        for key in self._STATE:
            if key in state:
                setattr(self, f"_{key}", from_json(state[key]))
        self.twins.load_state_dict(state.get("twins", {}))
        if self.redundancy is not None and state.get("redundancy"):
            self.redundancy.load_state_dict(state["redundancy"])
