"""Aligned-MTL: balance along the principal components (https://arxiv.org/abs/2305.19000)."""

from __future__ import annotations

import numpy as np

from ._linalg import Array
from ._rule import GramRule, Weights


class Aligned(GramRule):
    """α = √λ_min · V Λ^(−1/2) Vᵀ u: every principal component of the gradients gets equal length.

    V Λ Vᵀ = G restricted to its rank, u the preference (mean 1/K). Weights may be negative.
    """

    name = "aligned"

    def weights(self, gram: Array, preference: Array) -> Weights:
        values, vectors = np.linalg.eigh(gram)
        kept = values > values[-1] * len(gram) * np.finfo(float).eps
        values, vectors = values[kept], vectors[:, kept]
        share = preference / preference.sum()
        alpha = np.sqrt(values.min()) * (vectors @ ((vectors.T @ share) / np.sqrt(values)))
        return Weights(np.asarray(alpha), info={"condition": float(values.max() / values.min())})
