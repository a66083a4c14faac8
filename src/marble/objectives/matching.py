"""Objectives that match the velocity to a target: the mean square of the difference."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from marble.objectives.base import Objective, Point

if TYPE_CHECKING:
    from torch import Tensor


class Matching(Objective):
    """``L⁺ = mean((v_θ − target)²)``, no second side: all K gradients take one backward pass."""

    def sides(self, v: Tensor, point: Point) -> tuple[Tensor, None]:
        return self.error(v, point).square().flatten(1).mean(1), None

    def cotangents(self, v: Tensor, point: Point) -> tuple[Tensor, None]:
        error = self.error(v.detach(), point)
        return error * (2.0 / error[0].numel()), None

    @abstractmethod
    def error(self, v: Tensor, point: Point) -> Tensor:
        """v − target, in a format that is wide enough."""
