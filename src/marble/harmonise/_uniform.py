"""Equal weights: the baseline, and the consolidation stage at the end of a run."""

from __future__ import annotations

import numpy as np

from ._linalg import Array
from ._rule import FreeRule


class Uniform(FreeRule):
    """α_k = 1/K on the raw gradients (in proportion to the preference, if there is one)."""

    name = "uniform"

    def current(self, preference: Array) -> Array:
        return np.asarray(preference / preference.sum())
