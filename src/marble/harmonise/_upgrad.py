"""UPGrad: project every gradient, then average (https://arxiv.org/abs/2406.16232)."""

from __future__ import annotations

import numpy as np

from ._dual_cone import project_dual_cone
from ._linalg import Array
from ._rule import GramRule, Weights


class UPGrad(GramRule):
    """d = Σ_k u_k · proj(g_k), proj onto {d : d·g_j ≥ 0 for all j}, u the preference (mean 1/K).

    Conflicts with no reward, and unlike the min-norm point gives rewards that agree with each
    other their full share.
    """

    name = "upgrad"

    def weights(self, gram: Array, preference: Array) -> Weights:
        share = preference / preference.sum()
        parts = [project_dual_cone(row, gram) for row in np.diag(share)]
        return Weights(np.sum(parts, axis=0))
