"""Steering a Gram method by what its rewards did: measured progress, and signal against noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from marble.errors import MarbleError

from ._linalg import Array, from_json, to_json
from ._progress import Progress

Hybrid = Literal["none", "priorities", "gate"]
# A signal below this share of the squared norm cannot be told from noise.
_FLOOR = 0.05
_DECAY = 0.7


@dataclass(frozen=True)
class Steering:
    """What one solve is told besides its Gram matrix; vectors over the rewards that take part."""

    lean_K: Array
    """Factor on the priorities."""
    tilt_K: Array
    """Factor on the weights."""


def gate(alpha: Array, progress: Array, beta: float) -> float:
    """λ = exp(−β·max(0, lead)): 1 while the rewards that α favours are not ahead of the others.

    With e = α − 1/K, the lead is the mean progress of the favoured rewards (e > 0, weighted by e)
    less that of the discounted ones (e < 0, weighted by −e).
    """
    excess = alpha - 1.0 / len(alpha)
    favoured = float(np.maximum(excess, 0.0).sum())
    if favoured <= 1e-12:
        return 1.0
    lead = float(excess @ progress) / favoured
    return float(np.exp(-beta * max(0.0, lead)))


class Steer:
    """Keeps what `Steering` is made of.

    hybrid: how measured progress p (see `Progress`) enters a Gram method.
        "priorities": the rule's priorities are multiplied by K·softmax(−βp), so that a min-norm
            rule asks for the larger cosine with the reward that lags.
        "gate": every step, solved or not, takes λα + (1−λ)·softmax(−βp) with λ = `gate`(α, p, β)
            in place of the rule's α. Its discount of rewards that agree, and its favour for the
            one that stands alone, hold only while the favoured ones do not run away from the
            others; then progress takes over.
    snr: with s_k the share of signal in ‖g_k‖² (from independent halves of the step; limited to
        [0.05, 1], averaged over refreshes with decay 0.7), α_k is multiplied by s_k^snr.
        1 is the Wiener factor, which turns noisy rewards down; −1/2 gives every unit gradient the
        same length of *signal*, which turns them up; 0 is off.
    """

    def __init__(
        self,
        k: int,
        *,
        hybrid: Hybrid = "none",
        snr: float = 0.0,
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        if hybrid not in ("none", "priorities", "gate"):
            raise MarbleError(f"hybrid = {hybrid!r}: choose 'none', 'priorities' or 'gate'.")
        if not np.isfinite(snr):
            raise MarbleError(f"snr = {snr}: give an exponent, for example 1 or −0.5; 0 is off.")
        self.hybrid, self.snr = hybrid, float(snr)
        self.progress: Progress | None = None
        if hybrid != "none":
            self.progress = Progress(**(progress or {}))
        self._signal_K = np.full(k, np.nan)

    @property
    def used(self) -> bool:
        return self.progress is not None or self.snr != 0.0

    def hear(self, signal_K: Array, active_K: Array) -> None:
        """Takes note of a refresh's signal shares; those of inactive rewards stay."""
        now = np.clip(signal_K, _FLOOR, 1.0)
        known = np.isfinite(self._signal_K)
        smooth = np.where(known, _DECAY * self._signal_K + (1.0 - _DECAY) * now, now)
        self._signal_K = np.where(active_K & np.isfinite(now), smooth, self._signal_K)

    def of(self, index: Array) -> Steering:
        """The steering of a solve in which the rewards at `index` take part."""
        k = len(self._signal_K)
        lean, tilt = np.ones(k), np.ones(k)
        if self.snr and np.isfinite(self._signal_K).any():
            unknown = np.isnan(self._signal_K)
            tilt = np.where(unknown, np.nanmean(self._signal_K), self._signal_K) ** self.snr
        if self.progress is not None and self.hybrid == "priorities":
            lean = k * self.progress.current(np.ones(k))
        return Steering(lean[index], tilt[index])

    def gated(self, alpha_K: Array, active_K: Array) -> Array:
        """α after the gate; 0 for inactive rewards. α itself for other hybrids."""
        if self.progress is None or self.hybrid != "gate" or not active_K.any():
            return alpha_K
        k, index = len(alpha_K), np.flatnonzero(active_K)
        alpha, weights = alpha_K[index], self.progress.current(np.ones(k))[index]
        open_ = gate(alpha, self.progress.judged(k)[index], self.progress.beta)
        out = np.zeros(k)
        out[index] = open_ * alpha + (1.0 - open_) * weights / weights.sum()
        return out

    def state_dict(self) -> dict[str, Any]:
        progress = {} if self.progress is None else self.progress.state_dict()
        return {"progress": progress, "signal": to_json(self._signal_K)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._signal_K = from_json(state["signal"])
        if self.progress is not None:
            self.progress.load_state_dict(state["progress"])
