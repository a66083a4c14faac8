"""Flow-GRPO (arXiv 2505.05470): PPO's clipped ratio on the steps of a sampler with noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from marble.objectives.base import Drawn, ObjectiveOptions, Point, Points, column, wide
from marble.objectives.ratio import Clipped
from marble.options import NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor


class Options(ObjectiveOptions):
    kl: NonNegative = Field(
        default=0.04,
        description="Weight of the KL of a step to the base's, ‖μ_θ − μ_ref‖²/(2 std²).",
    )
    clip: Positive = Field(
        default=4e-4, description="Ratios count up to 1 ± this, per element of a sample."
    )


class GRPO(Clipped):
    """PPO's loss (see `Clipped`) per step of a trajectory, with ρ the ratio of the probabilities
    that v_θ and v_old, which drew the trajectory, give to the step taken.

    As published, its logarithm is the mean over the elements of a sample. It is then multiplied by
    the step's std (as in arXiv 2508.04324): else its gradient goes like 1/std, and the last steps,
    whose noise nobody sees, have the largest. Trained on are the steps that had noise
    (`rollout.sde`), as many as `train.timesteps_fraction` says.
    """

    name = "grpo"
    Options: ClassVar[type[ObjectiveOptions]] = Options
    keeps_path = True

    def log_ratio(self, v: Tensor, point: Point) -> Tensor:
        """[B]: log of p_θ/p_old of the step taken, per element, times the step's std."""
        from marble.models.sde import log_density, transition

        dtype = wide(v)
        assert point.v_old is not None
        x, taken, step = point.x_t.to(dtype), point.kept["taken"].to(dtype), self._step(point)
        sigma, following, noise, top = step
        logs = []
        for velocity in (v, point.v_old.detach()):
            mean, std = transition(x, velocity.to(dtype), sigma, following, noise, top)
            logs.append(log_density(taken, mean, std) / x[0].numel())
        return std * (logs[0] - logs[1])

    def penalty(self, v: Tensor, point: Point, weight: float) -> tuple[Tensor, Tensor]:
        """KL(step under v_θ ‖ step under v_ref) per element: both have the same std."""
        from marble.models.sde import slope, transition

        assert point.v_ref is not None
        dtype = wide(v)
        difference = v.to(dtype) - point.v_ref.to(dtype)
        sigma, following, noise, top = self._step(point)
        std = transition(difference, difference, sigma, following, noise, top)[1]
        factor = (slope(sigma, following, noise, top) / std).square().to(dtype)
        value = 0.5 * factor * difference.square().flatten(1).mean(1)
        return value, column(factor, difference) * difference * (weight / difference[0].numel())

    def points(self, drawn: Drawn, sigmas: Tensor, *, seed: int, inner: int, count: int) -> Points:
        """Steps of the trajectory, in an order of the sample's own."""
        import torch

        from marble.objectives.points import steps_of

        path = drawn.kept["path"]
        noise = float(drawn.kept["noise"].flatten()[0]) if len(path) else 1.0
        order = torch.from_numpy(steps_of(drawn.samples, path.shape[1] - 1, seed, inner, count))
        levels = torch.cat([sigmas, sigmas.new_zeros(1)])

        def at(j: int, chosen: slice) -> Point:
            step = order[j, chosen]
            rows = torch.arange(len(path))[chosen]
            kept = {
                "taken": path[rows.to(path.device), (step + 1).to(path.device)],
                "next": levels[step + 1],
                "noise": torch.full((len(step),), noise, dtype=torch.float64),
                "top": levels[1].expand(len(step)),
            }
            x = path[rows.to(path.device), step.to(path.device)]
            return Point(x, levels[step].to(x), drawn.latents[chosen], kept=kept)

        return at

    def _step(self, point: Point) -> tuple[Tensor, Tensor, float, float]:
        dtype = wide(point.t_B)
        kept = point.kept
        return (
            point.t_B.to(dtype),
            kept["next"].to(point.t_B.device, dtype),
            float(kept["noise"][0]),
            float(kept["top"][0]),
        )

    def pairs(self, recipe: Any) -> int:
        steps = self.path_length(recipe) - 1
        return max(1, int(recipe.train.timesteps_fraction * steps + 1e-9))

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[str]:
        rollout = recipe.rollout
        if rollout.sampler != "sde":
            yield (
                f"rollout.sampler: {rollout.sampler} is deterministic, and objective grpo needs "
                "the probabilities of its steps; use sde"
            )
        if rollout.guidance != 1:
            yield (
                "rollout.guidance: objective grpo trains the policy that draws, which guidance "
                "changes; use 1"
            )
