"""Advantage-weighted matching: the pretraining loss, weighted by advantages (arXiv 2509.25050)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marble.objectives.base import Point, clipped, column, wide
from marble.objectives.matching import Matching

if TYPE_CHECKING:
    from torch import Tensor


class AWM(Matching):
    """Per sample ``ℓ = A·L⁺`` with ``L⁺ = mean((v_θ − (ε − x_0))²)``.

    Samples that score better than their group are learned as data are in pretraining, worse ones
    unlearned. There is no second side, so that all K gradients take one backward pass.
    """

    name = "awm"

    def weights(self, adv_KN: Tensor) -> tuple[Tensor, Tensor]:
        a = clipped(adv_KN, self.options.a_max)
        return a, 0 * a

    def error(self, v: Tensor, point: Point) -> Tensor:
        dtype = wide(v)
        x_t, x_0 = point.x_t.to(dtype), point.x_0.to(dtype)
        t = column(point.t_B.to(dtype), x_0)
        velocity = (x_t - x_0) / t if point.noise is None else point.noise.to(dtype) - x_0
        return v.to(dtype) - velocity
