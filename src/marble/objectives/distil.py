"""Distillation of specialists into one LoRA, on the student's own pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from marble.errors import MarbleError
from marble.objectives.base import Objective, ObjectiveOptions, Point, wide
from marble.options import Name, NonNegative

if TYPE_CHECKING:
    from torch import Tensor

    from marble.data import Sample


class Options(ObjectiveOptions):
    kl: NonNegative = Field(
        default=0.0, description="Weight of ‖v_θ − v_ref‖², outside the balance."
    )
    teachers: dict[Name, str] = Field(
        default={},
        description="Reward → run folder or LoRA folder of its specialist; every reward "
        "trained has one.",
    )

    @field_validator("teachers")
    @classmethod
    def _whole_paths(cls, teachers: dict[str, str]) -> dict[str, str]:
        """So that a run can be resumed from another folder than it was started in."""
        return {name: str(Path(path).expanduser().absolute()) for name, path in teachers.items()}


class Distil(Objective):
    """Per sample ``ℓ = mean((v_θ − v_teacher)²)``, at noised pictures that the student drew itself.

    Every prompt has one teacher: that of the reward it is for, where there are rewards with
    `sources`; else one of the rewards that score it. Where several qualify, the run's seed and the
    prompt's number in the run decide. Reward k's gradient is that of its teacher's samples, so
    that every method balances teachers as it does rewards. Scores decide nothing but which rewards
    apply.
    """

    name = "distil"
    Options: ClassVar[type[ObjectiveOptions]] = Options

    @property
    def teachers(self) -> Mapping[str, str]:
        return dict(self.options.teachers)

    def asked(
        self,
        adv_KN: Tensor,
        samples: Sequence[Sample],
        *,
        names: Sequence[str],
        narrow_K: Sequence[bool],
        seed: int,
    ) -> Tensor:
        """1 for the reward whose teacher the sample's prompt has, NaN for all others."""
        import torch

        scored_KN = (~adv_KN.isnan()).cpu().numpy()
        known_K = np.array([name in self.options.teachers for name in names])
        by_group: dict[int, list[int]] = {}
        for i, sample in enumerate(samples):
            by_group.setdefault(sample.group, []).append(i)
        asked = torch.full_like(adv_KN, torch.nan)
        for group, at in by_group.items():
            able = np.flatnonzero(scored_KN[:, at].any(1) & known_K)
            able = able[np.array(narrow_K)[able]] if np.array(narrow_K)[able].any() else able
            if len(able):
                rng = np.random.default_rng([seed, group, 0xD157])
                asked[int(able[rng.integers(len(able))]), at] = 1.0
        return asked

    def weights(self, adv_KN: Tensor) -> tuple[Tensor, Tensor]:
        a = 0 * adv_KN + 1
        return a, 0 * a

    def sides(self, v: Tensor, point: Point) -> tuple[Tensor, None]:
        return self._error(v, point).square().flatten(1).mean(1), None

    def cotangents(self, v: Tensor, point: Point) -> tuple[Tensor, None]:
        error = self._error(v.detach(), point)
        return error * (2.0 / error[0].numel()), None

    def _error(self, v: Tensor, point: Point) -> Tensor:
        if point.v_teacher is None:
            raise MarbleError("distil: the point has no v_teacher; give the teacher's velocity.")
        dtype = wide(v)
        return v.to(dtype) - point.v_teacher.detach().to(dtype)

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[str]:
        given, names = recipe.objective.teachers, recipe.rewards.names
        for name in given:
            if name not in names:
                yield f"objective.teachers: no training reward called '{name}'"
        for name in (names[k] for k in recipe.trained_rewards):
            if name not in given:
                yield (
                    f"objective.teachers: reward '{name}' has none; give its specialist, e.g. "
                    f"{{{name}: runs/{name}}}"
                )
        if recipe.train.extremes < 1:
            yield "train.extremes: objective distil trains on no advantages; set it to 1"
        if recipe.train.fsdp:
            yield (
                "train.fsdp: with objective distil processes take different numbers of passes; "
                "set it to false"
            )
