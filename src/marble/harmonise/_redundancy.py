"""Redundancy weights: rewards that agree share a total weight of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._linalg import Array, from_json, to_json

# Total weight of rewards that agree: a second one counts in full, a third adds nothing.
_TOTAL = 2.0
# Support reaches 0 where the opposition is so many times the agreement (itself included).
_OPPOSED = 1.5


class Redundancy:
    """Running cosines of the rewards' advantages, and the weights that follow from them.

        w_k = min(1, 2 / Σ_j max(0, C_kj)^q),   C the advantages' cosines, averaged over steps

    n copies of a reward get a weight of 2/n each; two copies, and uncorrelated rewards, keep 1.
    A reward that opposes several others has less support:

        s_k = 1 while Σ_j max(0, −C_kj)^q ≤ Σ_j max(0, C_kj)^q, 0 from 1.5 times as much on

    It could only gain at the cost of all these, and would lag for ever. Two rewards that oppose
    each other keep their support. Advantages are known anyway, so this costs nothing.
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
    def weight_K(self) -> Array:
        return np.asarray(np.minimum(1.0, _TOTAL / self._with_K(1.0)))

    @property
    def support_K(self) -> Array:
        ratio = self._with_K(-1.0) / self._with_K(1.0)
        return np.asarray(np.clip((_OPPOSED - ratio) / (_OPPOSED - 1.0), 0.0, 1.0))

    def _with_K(self, sign: float) -> Array:
        """How many rewards agree with each, itself among them, or oppose it."""
        return np.asarray((np.maximum(sign * self._cos_KK, 0.0) ** self.power).sum(1))

    def state_dict(self) -> dict[str, Any]:
        return {
            "cos": [to_json(row) for row in self._cos_KK],
            "seen": [to_json(row) for row in self._seen_KK],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._cos_KK = np.stack([from_json(row) for row in state["cos"]])
        self._seen_KK = np.stack([from_json(row) for row in state["seen"]])
