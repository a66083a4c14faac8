"""The DiffusionNFT loss (arXiv 2509.16117), split into the two sides that do not depend on r."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from marble.errors import MarbleError
from marble.objectives.base import Objective, ObjectiveOptions, Point, column, wide
from marble.options import Positive

if TYPE_CHECKING:
    from torch import Tensor

MIN_ADAPTIVE_WEIGHT = 1e-5


class Options(ObjectiveOptions):
    name: str = Field(default="nft", description=ObjectiveOptions.model_fields["name"].description)
    form: Literal["adaptive", "plain"] = Field(
        default="adaptive",
        description="`nft`: self-normalised loss as trained in public code, or the equation.",
    )
    beta: Positive = Field(
        default=0.1, description="`nft`: strength of the implicit positive/negative policies."
    )


class NFT(Objective):
    """Per sample ``ℓ = r·L⁺ + (1−r)·L⁻`` for a velocity ``v_θ`` and its slow copy ``v_old``.

    ``r = clamp(1/2 + A/(2·A_max), 0, 1)``; ``v⁺ = βv_θ + (1−β)v_old`` and
    ``v⁻ = (1+β)v_old − βv_θ`` are pulled towards the sample.

    * adaptive (as trained in public code): ``x̂^± = x_t − t·v^±``,
      ``L^± = (A_max/β)·mean((x̂^± − x_0)²)/w^±`` with ``w^± = max(mean|x̂^± − x_0|, 1e-5)``
      detached, one per sample;
    * plain (the paper's equation): ``L^± = (A_max/β)·mean((v^± − v)²)`` with ``v = ε − x_0``.

    Everything is computed in fp32 (fp64 for fp64 inputs), also when the model gives bf16.
    """

    name = "nft"
    Options: ClassVar[type[ObjectiveOptions]] = Options
    policies = ("old",)
    common_pull = True

    @property
    def scale(self) -> float:
        return float(self.options.a_max / self.options.beta)

    def weights(self, adv_KN: Tensor) -> tuple[Tensor, Tensor]:
        r = (0.5 + adv_KN / (2 * self.options.a_max)).clamp(0.0, 1.0)
        return r, 1 - r

    def sides(self, v: Tensor, point: Point) -> tuple[Tensor, Tensor]:
        losses = []
        for sign in (1.0, -1.0):
            error, _ = self._error(sign, v, point)
            loss = error.square().flatten(1).mean(1)
            losses.append(self.scale * loss / self._weight(error))
        return losses[0], losses[1]

    def cotangents(self, v: Tensor, point: Point) -> tuple[Tensor, Tensor]:
        v, sides = v.detach(), []
        for sign in (1.0, -1.0):
            error, slope = self._error(sign, v, point)
            factor = self.scale * 2.0 / error[0].numel() / self._weight(error)
            sides.append(column(factor, error) * slope * error)
        return sides[0], sides[1]

    def _error(self, sign: float, v: Tensor, point: Point) -> tuple[Tensor, Tensor | float]:
        """The residual of one side, and its (elementwise constant) derivative in ``v``."""
        _check_shapes(v, point)
        assert point.v_old is not None
        dtype = wide(v)
        slope = sign * self.options.beta
        old = point.v_old.detach().to(dtype)
        mixed = old + slope * (v.to(dtype) - old)
        x_t, x_0 = point.x_t.to(dtype), point.x_0.to(dtype)
        t = column(point.t_B.to(dtype), x_0)
        if self.options.form == "adaptive":
            return x_t - t * mixed - x_0, -slope * t
        velocity = (x_t - x_0) / t if point.noise is None else point.noise.to(dtype) - x_0
        return mixed - velocity, slope

    def _weight(self, error: Tensor) -> Tensor:
        if self.options.form == "plain":
            return error.new_ones(error.shape[0])
        return error.detach().abs().flatten(1).mean(1).clamp_min(MIN_ADAPTIVE_WEIGHT)


def _check_shapes(v: Tensor, point: Point) -> None:
    others = {"v_old": point.v_old, "x_t": point.x_t, "x_0": point.x_0, "noise": point.noise}
    if point.v_old is None:
        raise MarbleError("nft: the point has no v_old; give the rollout policy's velocity.")
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != v.shape:
            raise MarbleError(
                f"nft: {name} has shape {tuple(tensor.shape)}, v {tuple(v.shape)}; "
                "all tensors but t_B must have the velocity's shape."
            )
    if v.dim() < 2 or point.t_B.shape != v.shape[:1]:
        raise MarbleError(
            f"nft: t_B has shape {tuple(point.t_B.shape)}; give one timestep per sample, "
            f"shape ({v.shape[0] if v.dim() else '?'},)."
        )
