"""Equal weights: the baseline, and the consolidation stage at the end of a run."""

from __future__ import annotations

import numpy as np

from ._linalg import Array
from ._rule import Rule, Weights


class Uniform(Rule):
    """α_k = 1/K on the raw gradients (in proportion to the preference, if there is one)."""

    name = "uniform"
    needs_gram = False

    def __init__(self) -> None:
        super().__init__(normalise=False)

    def weights(self, gram: Array, preference: Array) -> Weights:
        return Weights(self.current(preference))

    def current(self, preference: Array) -> Array:
        return np.asarray(preference / preference.sum())
