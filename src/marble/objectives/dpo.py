"""Online DPO: each reward's own preference between two pictures of a prompt (arXiv 2311.12908)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from marble.objectives.base import Drawn, Objective, ObjectiveOptions, Point, Points
from marble.objectives.matching import gain
from marble.options import NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor


class Options(ObjectiveOptions):
    kl: NonNegative = Field(
        default=10.0,
        description="Weight of ‖v_θ − v_old‖², outside the balance: what holds θ near v_old, "
        "where preferences alone do not.",
    )
    beta: Positive = Field(
        default=50.0,
        description="How soon a preference is satisfied as θ goes from v_old.",
    )


class DPO(Objective):
    """Per pair i, j of a prompt's pictures ``−log σ(±β(m_i − m_j))``, + where the reward prefers i.

    ``m = t·(mean((v_old − u)²) − mean((v_θ − u)²))`` with ``u = ε − x_0``: how much better than the
    reference the model explains the picture. The reference is v_old, which follows as slowly as
    `rollout.old_decay` says (as in arXiv 2404.09656): pictures are new in every epoch, and against
    a base that θ has left their margins would be large at random. Both pictures have the same noise
    and timestep, and the pair's loss each, so that the mean over pictures is the mean over pairs.
    Pairs are neighbours in a prompt's samples, drawn from independent seeds; every reward has its
    own preference, none where it scores both alike or does not apply.
    """

    name = "dpo"
    Options: ClassVar[type[ObjectiveOptions]] = Options
    policies = ("old",)
    anchor = "old"
    together = 2

    def weights(self, adv_KN: Tensor) -> tuple[Tensor, Tensor]:
        first, second = adv_KN[:, 0::2], adv_KN[:, 1::2]
        differ = first - second  # NaN where one of them is inapplicable
        nothing = differ.isnan() | (differ == 0)
        a = (differ > 0).to(adv_KN).masked_fill(nothing, float("nan"))
        return a.repeat_interleave(2, 1), (1 - a).repeat_interleave(2, 1)

    def sides(self, v: Tensor, point: Point) -> tuple[Tensor, Tensor]:
        import torch

        assert point.v_old is not None
        margin = gain(v, point.v_old, point)
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
