"""Progress on paired samples: pictures of the same prompt and seed, from the base and now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ._linalg import Array, from_json, to_json

# A gain of fewer standard errors than the first counts as none, from the second on as certain.
_MAYBE, _SURELY = 2.0, 4.0
# From this correlation of paired scores on, a reward measures the picture and is no noise.
_ALIKE = 0.5
_FEWEST = 3
# Spreads of progress between rewards, equally probable beforehand: half-Cauchy, half below 0.2 σ.
_SPREADS = 0.2 * np.tan(0.5 * np.pi * (np.arange(64) + 0.5) / 64)


class Measured(NamedTuple):
    """Progress of K rewards, from their scores of paired samples."""

    p_K: Array
    """Mean gain in standard deviations of the base's scores; NaN where nothing measures it."""
    error_K: Array
    """Standard error of p; NaN likewise."""
    trust_K: Array
    """0 (noise) to 1 (a score of the picture); 1 where it cannot be measured."""


class PairedScores:
    """Scores of the last `window` epochs' paired samples, [K, n] each; NaN: does not apply.

    Batch means vary with how hard the batch's prompts are, which hides how much the model has
    learned. Paired samples share prompt and seed, so their difference is due to training alone.
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
        """Gains, their standard errors, and the trust in each reward.

        A reward is trusted if its paired scores correlate or its gain is certain. One with
        neither is treated as noise: its missing gain must not look like a reward that lags.
        """
        now_Kn, base_Kn = np.concatenate(self._now, 1), np.concatenate(self._base, 1)
        p_K, error_K, trust_K = (np.full(len(now_Kn), fill) for fill in (np.nan, np.nan, 1.0))
        for k, (now, base) in enumerate(zip(now_Kn, base_Kn)):
            known = np.isfinite(now) & np.isfinite(base)
            now, base = now[known], base[known]
            if len(base) < _FEWEST or base.std() <= 1e-12:
                continue
            gain = (now - base) / base.std()
            # As if one more pair had gained σ: few pairs, or coarse scores, may all gain the same.
            p_K[k], error_K[k] = gain.mean(), np.sqrt((gain.var() + 1 / len(gain)) / len(gain))
            spread = now.std() * base.std()
            alike = ((now - now.mean()) * (base - base.mean())).mean() / spread if spread else 0.0
            moved = abs(p_K[k]) / error_K[k]
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
    """p shrunk towards its mean: differences within their standard error count for little.

    With τ the spread of true progress between rewards and e the errors,

        p̃_k = p̄ + trust_k·τ²/(τ² + e_k²)·(p_k − p̄),   p̄ weighed by trust/(τ² + e²),

    τ is integrated out (half-Cauchy prior) instead of set to its mode, which jumps between 0 and
    the spread of p when rewards are few. Unknown ones count as p̄.
    """
    known = np.isfinite(p_K) & (trust_K > 0.0)
    if not known.any():
        return np.zeros(len(p_K))
    p_k, trust_k = p_K[known], trust_K[known]
    var_Tk = _SPREADS[:, None] ** 2 + error_K[known] ** 2
    weight_Tk = trust_k / var_Tk
    mean_T = weight_Tk @ p_k / weight_Tk.sum(1)
    off_Tk = p_k - mean_T[:, None]
    # How likely p is under each τ, its mean being unknown; a reward counts as far as it is trusted.
    log_T = -0.5 * (trust_k * np.log(var_Tk) + weight_Tk * off_Tk**2).sum(1)
    log_T -= 0.5 * np.log(weight_Tk.sum(1))
    belief_T = np.exp(log_T - log_T.max())
    belief_T /= belief_T.sum()
    out = np.full(len(p_K), belief_T @ mean_T)
    out[known] += belief_T @ (trust_k * (_SPREADS[:, None] ** 2 / var_Tk) * off_Tk)
    return out
