"""Projection onto the dual cone: the nearest direction that conflicts with no reward."""

from __future__ import annotations

import numpy as np

from ._active_set import nonneg_qp
from ._linalg import Array, cosines, share_duplicates


def project_dual_cone(weights: Array, gram: Array) -> Array:
    """v ≥ `weights` such that Σ v_k g_k is the projection of Σ weights_k g_k onto {d : d·g_k ≥ 0}.

        v = argmin_{v ≥ weights} vᵀGv

    (the dual of the projection). Solved on unit gradients, so the lengths do not matter.
    """
    norms, cos = cosines(gram)
    lengths = weights * norms
    against = -cos @ lengths
    # The rewards it conflicts with are the first guess at those that will bind.
    added = nonneg_qp(cos, against, against)
    return np.asarray(weights + share_duplicates(added, cos) / norms)
