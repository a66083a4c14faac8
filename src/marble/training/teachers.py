"""Teachers of a run: frozen LoRAs in the student's model, one per reward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from marble.balance import Balancer, Batch
from marble.errors import MarbleError
from marble.models.base import Adapter
from marble.models.conditioning import Conditioning
from marble.objectives import Point, objective_class
from marble.recipe import Recipe
from marble.training.checkpoint import best_complete


def find_teachers(recipe: Recipe) -> dict[str, Path]:
    """Reward → LoRA folder of its teacher, of those that training needs."""
    given = objective_class(recipe.objective.name)(recipe.objective).teachers
    return {name: _lora_of(name, Path(folder)) for name, folder in given.items()}


def _lora_of(name: str, path: Path) -> Path:
    """A run's best checkpoint, or the LoRA itself."""
    if (path / "config.yaml").is_file():
        return best_complete(path / "checkpoints")[0] / "lora"
    is_file = path.is_file() and path.suffix == ".safetensors"
    if is_file or any(path.glob("*.safetensors")):
        return path
    what = "holds no run and no LoRA" if path.exists() else "there is no such folder"
    raise MarbleError(f"objective.teachers.{name}: {path}: {what}; give a run folder or a LoRA")


def add_teachers(recipe: Recipe, adapter: Adapter) -> None:
    """Loads them beside the student's own LoRA; after its sliders."""
    for name, folder in find_teachers(recipe).items():
        try:
            adapter.add_frozen(called(name), folder)
        except MarbleError as error:
            raise MarbleError(f"objective.teachers.{name}: {folder}: {error}") from None


def called(reward: str) -> str:
    """The adapter's name: a reward may be called `old`."""
    return f"teacher-{reward}"


def teachers_of(batch: Batch, position_n: Tensor, balancer: Balancer) -> list[str]:
    """The adapter that teaches each of these samples: of the one reward it takes part for."""
    k_n = batch.adv.valid_KN[:, position_n].to(torch.uint8).argmax(0)
    known = balancer.objective.teachers
    names = [called(name if name in known else next(iter(known))) for name in balancer.names]
    return [names[k] for k in k_n.tolist()]


def taught_velocity(
    adapter: Adapter, point: Point, cond: Conditioning, taught: Sequence[str]
) -> Tensor:
    """Each sample's velocity under its own teacher: one pass per teacher, on its samples."""
    found = torch.empty_like(point.x_t)
    for name in dict.fromkeys(taught):
        rows = [i for i, other in enumerate(taught) if other == name]
        with adapter.using(name):
            if adapter.compiled is not None:  # for one size of batch
                found[rows] = adapter.velocity(point.x_t, point.t_B, cond)[rows]
            else:
                found[rows] = adapter.velocity(point.x_t[rows], point.t_B[rows], cond[rows])
    return found
