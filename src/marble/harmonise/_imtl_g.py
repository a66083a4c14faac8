"""IMTL-G: equal projections (https://openreview.net/forum?id=IMPnRXEWpvr)."""

from __future__ import annotations

import numpy as np

from ._linalg import Array, cosines, on_simplex
from ._rule import GramRule, Weights


class IMTLG(GramRule):
    """The α, Σα = 1, for which d has the same projection on every unit gradient: C β = π.

    β_k = α_k‖g_k‖; with a preference π the cosines of d are in proportion to it. Without sign
    constraint: a reward may get a negative weight to bring its cosine *down* to the others'.
    Dependent gradients are solved in the least-squares sense; where no such α has a positive
    sum, the weights are uniform.
    """

    name = "imtl_g"

    def weights(self, gram: Array, preference: Array) -> Weights:
        norms, cos = cosines(gram)
        lengths = np.linalg.pinv(cos, rcond=1e-12, hermitian=True) @ preference
        return Weights(on_simplex(lengths / norms))
