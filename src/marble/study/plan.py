"""A study file: what is varied, on which recipe, with which seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marble.errors import MarbleError, RecipeError
from marble.recipe import load_recipe

KEYS = {"description", "recipe", "seeds", "common", "cells"}


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    name: str
    seed: int
    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        return f"{self.name}-seed{self.seed}"


@dataclass(frozen=True)
class Study:
    name: str
    description: str
    recipe: str
    cells: list[Cell]

    @property
    def names(self) -> list[str]:
        """The cells' names, without seeds, in the order of the file."""
        return list(dict.fromkeys(cell.name for cell in self.cells))


def load_study(path: Path) -> Study:
    """Reads a study and checks every cell's recipe, so that no run fails on a typing mistake."""
    if not path.is_file():
        raise MarbleError(f"{path}: no such study file")
    try:
        data = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise MarbleError(f"{path}: not YAML ({error})") from None
    if not isinstance(data, dict) or not isinstance(data.get("cells"), dict):
        raise MarbleError(f"{path}: a study needs `cells`, a mapping of name to overrides")
    unknown = set(data) - KEYS
    if unknown:
        raise MarbleError(
            f"{path}: unknown key {sorted(unknown)[0]}; known: {', '.join(sorted(KEYS))}"
        )
    recipe, common = str(data.get("recipe", "studio")), data.get("common") or {}
    cells = []
    for name, own in data["cells"].items():
        settings = {**common, **(own or {})}
        for seed in data.get("seeds", [0]):
            overrides = (*(_word(k, v) for k, v in settings.items()), f"train.seed={seed}")
            cells.append(Cell(str(name), int(seed), overrides))
    study = Study(path.stem, str(data.get("description", "")), recipe, cells)
    for cell in study.cells:
        try:
            load_recipe(recipe, list(cell.overrides))
        except RecipeError as error:
            raise MarbleError(f"{path}: cell {cell.name}: {error}") from None
    return study


def _word(key: str, value: Any) -> str:
    """`key=value` as it would be typed: values are YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return f"{key}={text.removesuffix('...' + chr(10)).strip()}"
