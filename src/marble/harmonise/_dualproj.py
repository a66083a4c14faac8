"""DualProj: average, then project (GEM, https://arxiv.org/abs/1706.08840)."""

from __future__ import annotations

from ._dual_cone import project_dual_cone
from ._linalg import Array
from ._rule import GramRule, Weights


class DualProj(GramRule):
    """The nearest direction to the (preference-weighted) mean that conflicts with no reward."""

    name = "dualproj"

    def weights(self, gram: Array, preference: Array) -> Weights:
        return Weights(project_dual_cone(preference / preference.sum(), gram))
