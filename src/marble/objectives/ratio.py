"""PPO's clipped ratio, in the two sides that do not depend on the advantages."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from marble.objectives.base import Objective, Point, clipped

if TYPE_CHECKING:
    from torch import Tensor


class Clipped(Objective):
    """``ℓ = −min(ρA, clip(ρ, 1 − ε, 1 + ε)A) = A⁺L⁺ + A⁻L⁻`` with ``L⁺ = −min(ρ, 1 + ε)``,
    ``L⁻ = max(ρ, 1 − ε)``, ``A± = max(±A, 0)``; ε is the option `clip`.

    ρ compares v_θ with v_old, which drew the pictures: a sample that is already so much likelier
    (or less likely) than under v_old has no gradient. How far θ may go from v_old, which follows it
    as slowly as `rollout.old_decay` says, is thus limited.
    """

    policies = ("old",)

    @abstractmethod
    def log_ratio(self, v: Tensor, point: Point) -> Tensor:
        """[B]: log ρ, differentiable in `v`."""

    def weights(self, adv_KN: Tensor) -> tuple[Tensor, Tensor]:
        a = clipped(adv_KN, self.options.a_max)
        return a.clamp_min(0.0), (-a).clamp_min(0.0)

    def sides(self, v: Tensor, point: Point) -> tuple[Tensor, Tensor]:
        ratio, clip = self.log_ratio(v, point).exp(), self.options.clip
        return -ratio.clamp(max=1 + clip), ratio.clamp(min=1 - clip)
