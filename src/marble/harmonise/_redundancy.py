"""Votes: a crowd of rewards that say the same has two, one that most others oppose none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._linalg import Array, from_json, to_json

# What a crowd has: a second opinion counts, a third adds nothing.
_CROWD = 2.0
# A reward is outvoted where so many times more oppose it than agree with it, itself among them.
_OUTVOTED = 1.5


class Redundancy:
    """Follows how far the rewards' advantages agree, and what vote that leaves to each.

        v_k = min(1, 2 / Σ_j max(0, C_kj)^q),   C the advantages' cosines, averaged over steps

    n copies of a reward get 2/n each; a pair and rewards that have nothing in common keep theirs.
    Two that oppose each other keep theirs too, but one that opposes several is heard less:

        h_k = 1 while Σ_j max(0, −C_kj)^q ≤ Σ_j max(0, C_kj)^q, 0 from 1.5 times as much on

    It could only be served by taking from all of these, and would lag for ever. Advantages are
    known for every picture and cost nothing.
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
        return np.asarray(np.minimum(1.0, _CROWD / self._with_K(1.0)))

    @property
    def heard_K(self) -> Array:
        ratio = self._with_K(-1.0) / self._with_K(1.0)
        return np.asarray(np.clip((_OUTVOTED - ratio) / (_OUTVOTED - 1.0), 0.0, 1.0))

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
