"""PCGrad: take out of each gradient what opposes another (https://arxiv.org/abs/2001.06782)."""

from __future__ import annotations

import numpy as np

from ._linalg import Array, cosines, share_duplicates
from ._rule import GramRule, Weights


class PCGrad(GramRule):
    """d = Σ_i u_i g_i', g_i' = g_i with its component along each opposing g_j removed in turn.

    The original takes the others in random order. Here the strongest opponent goes first: the
    same for K = 2, deterministic (a resumed run repeats itself) and blind to the order of rewards.
    """

    name = "pcgrad"

    def weights(self, gram: Array, preference: Array) -> Weights:
        norms, cos = cosines(gram)
        total = np.zeros(len(gram))
        for i, share in enumerate(preference / preference.sum()):
            current = np.zeros(len(gram))
            current[i] = 1.0
            for j in np.argsort(cos[i], kind="stable"):
                against = float(cos[j] @ current)
                if j != i and against < 0.0:
                    current[j] -= against
            total += share * norms[i] * current
        return Weights(share_duplicates(total, cos) / norms)
