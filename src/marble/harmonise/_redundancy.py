"""Rewards that say the same have one vote between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._linalg import Array, from_json, to_json


class Redundancy:
    """Follows how far the rewards' advantages agree, and what vote that leaves to each.

        v_k = 1 / Σ_j max(0, C_kj)^q,   C the cosines of the advantage vectors, averaged over steps

    n copies of a reward get 1/n each, rewards that have nothing in common 1, and so do opponents.
    Advantages are known for every picture and cost nothing.
    """

    def __init__(self, k: int, power: float, decay: float = 0.9) -> None:
        self.power, self.decay = power, decay
        self._cos_KK = np.eye(k)
        self._seen_KK = np.zeros((k, k))

    def observe(self, advantages_KN: Array) -> None:
        """One step's advantages; NaN where a reward does not apply."""
        known = np.nan_to_num(np.asarray(advantages_KN, dtype=np.float64), nan=0.0)
        lengths = np.sqrt((known**2).sum(1))
        told = np.outer(lengths > 0.0, lengths > 0.0)
        unit = known / np.where(lengths > 0.0, lengths, 1.0)[:, None]
        share = np.maximum(1.0 - self.decay, 1.0 / (self._seen_KK + 1.0))
        self._cos_KK = np.where(
            told, (1.0 - share) * self._cos_KK + share * (unit @ unit.T), self._cos_KK
        )
        np.fill_diagonal(self._cos_KK, 1.0)
        self._seen_KK = self._seen_KK + told

    @property
    def votes_K(self) -> Array:
        return np.asarray(1.0 / (np.maximum(self._cos_KK, 0.0) ** self.power).sum(1))

    def state_dict(self) -> dict[str, Any]:
        return {
            "cos": [to_json(row) for row in self._cos_KK],
            "seen": [to_json(row) for row in self._seen_KK],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._cos_KK = np.stack([from_json(row) for row in state["cos"]])
        self._seen_KK = np.stack([from_json(row) for row in state["seen"]])
