"""Measured progress beside a Gram method, which it holds back where a reward runs away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._linalg import Array
from ._progress import Progress


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


class Gated:
    """Every step, solved or not, takes λα + (1−λ)·softmax(−βp) in place of the rule's α.

    p is measured progress (see `Progress`), λ = `gate`(α, p, β). The rule's discount of rewards
    that agree, and its favour for the one that stands alone, hold only while the favoured ones do
    not run away from the others; then progress takes over.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.progress = Progress(**(options or {}))

    def __call__(self, alpha_K: Array, active_K: Array) -> Array:
        """α after the gate; 0 for inactive rewards."""
        if not active_K.any():
            return alpha_K
        k, index = len(alpha_K), np.flatnonzero(active_K)
        alpha, weights = alpha_K[index], self.progress.current(np.ones(k))[index]
        open_ = gate(alpha, self.progress.judged(k)[index], self.progress.beta)
        out = np.zeros(k)
        out[index] = open_ * alpha + (1.0 - open_) * weights / weights.sum()
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"progress": self.progress.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.progress.load_state_dict(state["progress"])
