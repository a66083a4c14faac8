"""Advantage-weighted matching (arXiv 2509.25050): PPO's clipped ratio on the pretraining loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from marble.objectives.base import ObjectiveOptions, Point
from marble.objectives.matching import gain
from marble.objectives.ratio import Clipped
from marble.options import NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor


class Options(ObjectiveOptions):
    kl: NonNegative = Field(
        default=0.2,
        description="Weight of ‖v_θ − v_old‖², outside the balance: beside the clip, what holds θ "
        "near the policy that draws.",
    )
    clip: Positive = Field(
        default=1.0,
        description="Ratios count up to 1 ± this; 1: the pull to v_old alone is the brake.",
    )


class AWM(Clipped):
    """PPO's loss (see `Clipped`) with ``ρ = exp(t·(mean((v_old − u)²) − mean((v_θ − u)²)))``,
    ``u = ε − x_0``: matching losses at noised pictures stand in for log-probabilities.

    Samples that score better than their group are learned as data are in pretraining, worse ones
    unlearned. The squares grow without bound on the worse ones' side, which the pull to v_old keeps
    in check. A tight clip, as published, does so too, at half the gain in the studio.
    """

    name = "awm"
    Options: ClassVar[type[ObjectiveOptions]] = Options
    anchor = "old"

    def log_ratio(self, v: Tensor, point: Point) -> Tensor:
        assert point.v_old is not None
        return gain(v, point.v_old, point)
