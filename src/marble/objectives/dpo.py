"""Online DPO: each reward's own preference between two pictures of a prompt (arXiv 2311.12908)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from marble.objectives.base import (
    Drawn,
    Objective,
    ObjectiveOptions,
    Point,
    Points,
    column,
    wide,
)
from marble.options import NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor


class Options(ObjectiveOptions):
    kl: NonNegative = Field(
        default=0.0,
        description="Weight of ‖v_θ − v_ref‖², outside the balance; DPO itself holds to the base.",
    )
    beta: Positive = Field(
        default=1000.0, description="`dpo`: how far a preference may move the model off the base."
    )


class DPO(Objective):
    """Per pair i, j of a prompt's pictures ``−log σ(±β(m_i − m_j))``, + where the reward prefers i.

    ``m = mean((v_ref − u)²) − mean((v_θ − u)²)`` with ``u = ε − x_0``: how much better than the
    base the model explains the picture. Both pictures have the same noise and timestep, and the
    pair's loss each, so that the mean over pictures is the mean over pairs. Pairs are neighbours in
    a prompt's samples, drawn from independent seeds; every reward has its own preference, none
    where it scores both alike or does not apply.
    """

    name = "dpo"
    Options: ClassVar[type[ObjectiveOptions]] = Options
    policies = ("base",)
    together = 2

    def weights(self, adv_KN: Tensor) -> tuple[Tensor, Tensor]:
        first, second = adv_KN[:, 0::2], adv_KN[:, 1::2]
        differ = first - second  # NaN where one of them is inapplicable
        nothing = differ.isnan() | (differ == 0)
        a = (differ > 0).to(adv_KN).masked_fill(nothing, float("nan"))
        return a.repeat_interleave(2, 1), (1 - a).repeat_interleave(2, 1)

    def sides(self, v: Tensor, point: Point) -> tuple[Tensor, Tensor]:
        import torch

        dtype = wide(v)
        assert point.v_ref is not None
        x_t, x_0 = point.x_t.to(dtype), point.x_0.to(dtype)
        t = column(point.t_B.to(dtype), x_0)
        u = (x_t - x_0) / t if point.noise is None else point.noise.to(dtype) - x_0
        loss, base = (
            (w.to(dtype) - u).square().flatten(1).mean(1) for w in (v, point.v_ref.detach())
        )
        margin = base - loss
        lead = self.options.beta * (margin[0::2] - margin[1::2])
        log_sigmoid = torch.nn.functional.logsigmoid
        plus, minus = (-log_sigmoid(sign * lead).repeat_interleave(2) for sign in (1, -1))
        return plus, minus

    def points(self, drawn: Drawn, sigmas: Tensor, *, seed: int, inner: int, count: int) -> Points:
        """The second of a pair has the noise and the timesteps of the first."""
        leaders = [drawn.samples[i - i % 2] for i in range(len(drawn.samples))]
        return super().points(
            replace(drawn, samples=leaders), sigmas, seed=seed, inner=inner, count=count
        )

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[str]:
        for key, value in (
            ("data.images_per_prompt", recipe.data.images_per_prompt),
            ("train.batch_size", recipe.train.batch_size),
        ):
            if value is not None and value % 2:
                yield f"{key}: objective dpo compares pairs of pictures; give an even number"
        if recipe.train.steps_per_epoch > recipe.trained_per_epoch // 2:
            yield (
                f"train.steps_per_epoch: {recipe.train.steps_per_epoch} steps cannot share "
                f"{recipe.trained_per_epoch // 2} pairs"
            )
