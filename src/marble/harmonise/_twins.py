"""How far rewards have come, by twins: pictures of one prompt and seed, from the base and now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ._linalg import Array, from_json, to_json

# A move of more standard errors than the first may have been learned, of the second surely has.
_MAYBE, _SURELY = 2.0, 4.0
# Twins that correlate so far are known again.
_ALIKE = 0.5
_FEWEST = 3


class Measured(NamedTuple):
    """What twins tell of K rewards."""

    p_K: Array
    """Mean gain in standard deviations of the base's scores; NaN where nothing measures it."""
    error_K: Array
    """Standard error of p; NaN likewise."""
    trust_K: Array
    """0 to 1: is it a score of the picture at all? 1 for one that cannot be measured."""


class Twins:
    """The scores of the last `window` epochs' twins, [K, n] each; NaN where a reward does not
    apply.

    The prompts of a batch are easier or harder than those of the last one, which hides how far
    the model has come; twins differ only by what was learned.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._now: list[Array] = []
        self._base: list[Array] = []

    def add(self, now_Kn: Array, base_Kn: Array) -> None:
        self._now = [*self._now, np.array(now_Kn, dtype=np.float64)][-self.window :]
        self._base = [*self._base, np.array(base_Kn, dtype=np.float64)][-self.window :]

    def __bool__(self) -> bool:
        return bool(self._now)

    def measured(self) -> Measured:
        """A reward is trusted that knows a picture's twin again, by their correlation, or that has
        surely moved. One that does neither is noise, and must not look like one that lags.
        """
        now_Kn, base_Kn = np.concatenate(self._now, 1), np.concatenate(self._base, 1)
        p_K, error_K, trust_K = (np.full(len(now_Kn), fill) for fill in (np.nan, np.nan, 1.0))
        for k, (now, base) in enumerate(zip(now_Kn, base_Kn)):
            known = np.isfinite(now) & np.isfinite(base)
            now, base = now[known], base[known]
            if len(base) < _FEWEST or base.std() <= 1e-12:
                continue
            gain = (now - base) / base.std()
            p_K[k], error_K[k] = gain.mean(), gain.std() / np.sqrt(len(gain))
            spread = now.std() * base.std()
            alike = ((now - now.mean()) * (base - base.mean())).mean() / spread if spread else 0.0
            moved = abs(p_K[k]) / error_K[k] if error_K[k] > 0.0 else _SURELY
            sure = (min(moved, _SURELY) - _MAYBE) / (_SURELY - _MAYBE)
            trust_K[k] = min(1.0, max(alike / _ALIKE, sure, 0.0))
        return Measured(p_K, error_K, trust_K)

    def state_dict(self) -> dict[str, Any]:
        pairs = (("now", self._now), ("base", self._base))
        return {key: [[to_json(row) for row in part] for part in parts] for key, parts in pairs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._now, self._base = (
            [np.stack([from_json(row) for row in part]) for part in state.get(key, [])]
            for key in ("now", "base")
        )


def shrunk(p_K: Array, error_K: Array, trust_K: Array) -> Array:
    """p moved towards its mean as far as differences between rewards may be errors of measurement.

    p̃_k = p̄ + trust_k·τ²/(τ² + e_k²)·(p_k − p̄), with τ² the rewards' variance beyond that of the
    errors e, and p̄ weighed by 1/(τ² + e²) and trust. Unknown ones count as p̄.
    """
    known = np.isfinite(p_K) & (trust_K > 0.0)
    if not known.any():
        return np.zeros(len(p_K))
    p, error, trust = p_K[known], error_K[known], trust_K[known]
    mean = float(trust @ p / trust.sum())
    spread = max(0.0, float(trust @ ((p - mean) ** 2 - error**2) / trust.sum()))
    total = spread + error**2
    exact = total == 0.0  # the limit of ever smaller errors: these alone make the mean
    safe = np.where(exact, 1.0, total)
    weight = trust * exact if exact.any() else trust / safe
    mean = float(weight @ p / weight.sum())
    out = np.full(len(p_K), mean)
    out[known] = mean + trust * np.where(exact, 1.0, spread / safe) * (p - mean)
    return out
