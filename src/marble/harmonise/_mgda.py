"""MGDA: the min-norm point of the raw gradients (Désidéri 2012, https://doi.org/10.1016/j.crma.2012.03.014)."""

from __future__ import annotations

from pydantic import Field

from marble.options import Section

from ._linalg import Array, on_simplex
from ._min_norm import min_norm_point
from ._rule import GramRule, Weights


class MGDA(GramRule):
    """argmin_{α ∈ simplex} ‖Σ α_k g_k / π_k‖, solved exactly.

    At the optimum d·g_k/π_k is the same for every reward with weight and larger for the others,
    so d conflicts with none. A preference π lengthens the share of a reward by shortening its
    gradient. Raw gradients: a short gradient takes most of the weight (see `marble`).
    """

    name = "mgda"

    class Options(Section):
        normalise: bool = Field(default=False, description="Solve on unit gradients.")

    def weights(self, gram: Array, preference: Array) -> Weights:
        point = min_norm_point(gram / preference[:, None] / preference[None, :])
        return Weights(on_simplex(point.alpha / preference), point.gap)
