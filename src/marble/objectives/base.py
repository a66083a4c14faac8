"""What an objective is: two losses per sample, and how much of each every reward asks for.

Reward k's loss is ``Σ_i share_ki (a_ki L⁺_i + b_ki L⁻_i)``. The weights a, b come from advantages
alone, the sides L± from the model alone, so that all K gradients take two backward passes.

Built-in objectives import torch where they compute: a recipe is checked without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from marble.errors import MarbleError
from marble.options import NonNegative, Positive, PositiveInt, Section

if TYPE_CHECKING:
    from torch import Tensor

    from marble.data import Sample


class ObjectiveOptions(Section):
    """Options that every objective has; its own `Options` adds to them."""

    name: str = Field(
        default="",
        description="The loss: a built-in one (docs/engine.md) or your own as `module:Class`.",
    )
    a_max: Positive = Field(default=5.0, description="Advantages count up to this size.")
    advantage_std: Literal["batch", "group"] = Field(
        default="batch", description="Divide by the reward's std over the epoch, or over the group."
    )
    kl: NonNegative = Field(
        default=1e-4, description="Weight of ‖v_θ − v_ref‖², outside the balance."
    )
    kl_every: PositiveInt = Field(
        default=1,
        description="Compute the KL on every m-th micro-batch and weight it by m (unbiased).",
    )


@dataclass
class Point:
    """What a micro-batch is trained on: where the model is asked, and what its loss needs."""

    x_t: Tensor
    t_B: Tensor
    x_0: Tensor
    noise: Tensor | None = None
    v_old: Tensor | None = None
    """Velocity of the rollout policy, where the objective's `policies` name it."""
    v_ref: Tensor | None = None
    """Velocity of the objective's `anchor`, where this micro-batch has a KL term."""
    kl: float = 0.0
    kept: dict[str, Tensor] = field(default_factory=dict)
    """What else the objective put there, first axis B."""
    v_teacher: Tensor | None = None
    """Velocity of each sample's teacher, where the objective has `teachers`."""


@dataclass(frozen=True)
class Drawn:
    """Samples of a rollout on this process, with their x_0 and what else the rollout kept."""

    samples: Sequence[Sample]
    latents: Tensor
    kept: dict[str, Tensor] = field(default_factory=dict)


Points = Callable[[int, slice], Point]
"""(pair j of each sample, which samples) → the point, on the latents' device."""


class Objective(ABC):
    """Base of all objectives. A subclass has a `name`, `Options`, `weights` and `sides`."""

    name: ClassVar[str]
    Options: ClassVar[type[ObjectiveOptions]] = ObjectiveOptions
    policies: ClassVar[tuple[str, ...]] = ()
    """Frozen policies whose velocity the sides need, besides the KL's: `old`, `base`."""
    anchor: ClassVar[Literal["base", "old"]] = "base"
    """The policy that the KL holds θ to, as `point.v_ref`; `old` must be one of `policies`."""
    keeps_path: ClassVar[bool] = False
    """Whether a rollout must keep its steps (see `models.sde.Sde`), not only x_0."""
    common_pull: ClassVar[bool] = False
    """Whether a + b = 1 for every reward: `balance.target: reward` splits off that common part."""
    together: ClassVar[int] = 1
    """So many consecutive samples of a prompt go to one process, step and micro-batch."""

    def __init__(self, options: ObjectiveOptions | None = None, **given: Any) -> None:
        if options is None:
            try:
                options = self.Options(**{"name": self.name, **given})
            except ValidationError as error:
                raise MarbleError(f"{self.name}: {_first(error)}") from None
        self.options: Any = options

    @property
    def teachers(self) -> Mapping[str, str]:
        """Reward → folder of a frozen LoRA: `point.v_teacher` has its velocity for the samples that
        take part for that reward, one reward each (see `asked`)."""
        return {}

    def asked(
        self,
        adv_KN: Tensor,
        samples: Sequence[Sample],
        *,
        names: Sequence[str],
        narrow_K: Sequence[bool],
        seed: int,
    ) -> Tensor:
        """What `weights` is given for the samples of an epoch, all processes': their advantages.

        narrow_K: rewards that are for some sources of prompts alone.
        """
        return adv_KN

    @abstractmethod
    def weights(self, adv_KN: Tensor) -> tuple[Tensor, Tensor]:
        """(a, b): reward k's weights of L⁺_i and L⁻_i, before the mean over its samples.

        NaN where the sample takes no part for that reward, as advantages are where it does not
        apply. Samples that belong `together` are adjacent columns.
        """

    @abstractmethod
    def sides(self, v: Tensor, point: Point) -> tuple[Tensor, Tensor | None]:
        """(L⁺, L⁻), each [B], differentiable in `v`; None for a side that is never weighted."""

    def cotangents(self, v: Tensor, point: Point) -> tuple[Tensor, Tensor | None]:
        """(∂ΣL⁺/∂v, ∂ΣL⁻/∂v), shaped like `v`, no graph. Override where there is a closed form."""
        import torch

        with torch.enable_grad():
            leaf = v.detach().requires_grad_()
            found: list[Tensor] = []
            for side in self.sides(leaf, point):
                if side is not None:
                    found += torch.autograd.grad(side.sum(), leaf, retain_graph=True)
        return found[0], found[1] if len(found) > 1 else None

    def penalty(self, v: Tensor, point: Point, weight: float) -> tuple[Tensor, Tensor]:
        """The KL outside the balance: its value per sample, and `weight` times its gradient."""
        assert point.v_ref is not None
        dtype = wide(v)
        difference = v.to(dtype) - point.v_ref.to(dtype)
        cotangent = difference * (2 * weight / difference[0].numel())
        return difference.square().flatten(1).mean(1), cotangent

    def points(self, drawn: Drawn, sigmas: Tensor, *, seed: int, inner: int, count: int) -> Points:
        """`count` points for every sample: its x_0 noised to levels of the sampling grid."""
        from marble.objectives.points import noised

        return noised(drawn, sigmas, seed=seed, inner=inner, count=count)

    @classmethod
    def path_length(cls, recipe: Any) -> int:
        """Latents of a sample that a rollout keeps besides x_0, around its noisy steps."""
        steps = recipe.rollout.steps
        return min(recipe.rollout.sde.window or steps, steps) + 1 if cls.keeps_path else 0

    def pairs(self, recipe: Any) -> int:
        """(sample, timestep) pairs that each sample is trained on."""
        return int(recipe.timesteps_per_sample)

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[str]:
        """What a recipe asks that this objective cannot do, as `dotted.path: message`."""
        return iter(())


def wide(v: Tensor) -> Any:
    """The dtype that losses are computed in: fp64 for fp64, else fp32."""
    import torch

    return torch.float64 if v.dtype == torch.float64 else torch.float32


def column(value_B: Tensor, like: Tensor) -> Tensor:
    """[B] as [B, 1, …], to multiply with `like`."""
    return value_B.view(-1, *[1] * (like.dim() - 1))


def clipped(adv_KN: Tensor, a_max: float) -> Tensor:
    """Advantages limited to ±a_max; NaN stays NaN."""
    return adv_KN.clamp(-a_max, a_max)


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where} = {problem.get('input')!r}: {problem['msg']}"
