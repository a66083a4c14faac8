"""A study file: what is varied, on which recipe, with which seeds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble.errors import MarbleError, RecipeError
from marble.recipe import load_recipe
from marble.recipe.files import misspelt
from marble.recipe.yamlio import dump, read

KEYS = (
    "description",
    "recipe",
    "trainer",
    "seeds",
    "common",
    "settings",
    "cells",
    "judge",
    "show",
    "without",
    "fewer",
)
TRAINERS = {"marble": ("-m", "marble", "train"), "toy": ("-m", "marble.study.toy")}


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    name: str
    seed: int
    overrides: tuple[str, ...]
    setting: str = ""

    @property
    def folder(self) -> str:
        return "-".join(part for part in (self.setting, self.name, f"seed{self.seed}") if part)


@dataclass(frozen=True)
class Study:
    name: str
    description: str
    recipe: str
    cells: list[Cell]
    judge: tuple[str, ...] = ()
    """Rewards by which cells are ranked; () means all that a run was trained on."""
    trainer: str = "marble"
    show: tuple[str, ...] = ()
    """Cells that documentation shows; () means all."""

    @property
    def names(self) -> list[str]:
        """The cells' names, without settings and seeds, in the order of the file."""
        return list(dict.fromkeys(cell.name for cell in self.cells))

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(cell.setting for cell in self.cells))


def load_study(path: Path) -> Study:
    """Reads a study and checks every cell's recipe, so that no run fails on a typing mistake.

    The runs are settings × cells × seeds. Overrides of a cell come after those of its setting,
    and both after the common ones. `without` names the cells that a setting does not have,
    `fewer` the seeds of a setting, or of a cell, that has not all.
    """
    data = _read(path)
    seeds = _seeds(data.get("seeds", [0]), f"{path}: seeds")
    settings = _mapping(data.get("settings") or {"": {}}, path, "settings")
    trainer = str(data.get("trainer", "marble"))
    if trainer not in TRAINERS:
        raise MarbleError(f"{path}: trainer: choose one of {', '.join(TRAINERS)}")
    recipe = _recipe(str(data.get("recipe", "studio")), path)
    every = _mapping(data["cells"], path, "cells")
    without = _lists(data, "without", path, settings, "setting")
    fewer = _lists(data, "fewer", path, [*settings, *every], "setting or cell")
    for at, some in fewer.items():
        if not set(_seeds(some, f"{path}: fewer: {at}")) <= set(seeds):
            raise MarbleError(f"{path}: fewer: {at}: {some} are not all among the seeds {seeds}")
    for name in (str(name) for names in without.values() for name in names):
        if name not in every:
            raise MarbleError(f"{path}: without: there is no cell {name}")
    common = data.get("common") or {}
    if not isinstance(common, dict):
        raise MarbleError(f"{path}: common: give a mapping of overrides")
    cells: list[Cell] = []
    names: dict[str, None] = {}
    for setting, around in settings.items():
        for name, own in every.items():
            if name in map(str, without.get(setting, ())):
                continue
            own_seeds = [fewer[at] for at in (setting, name) if at in fewer]
            some = [seed for seed in seeds if all(seed in those for those in own_seeds)]
            both = {**common, **(around or {}), **(own or {})}
            words = tuple(_word(key, value) for key, value in both.items())
            try:  # seeds differ in nothing that could be wrong
                loaded = load_recipe(recipe, list(words))
            except RecipeError as error:
                where = f"setting {setting}, cell {name}" if setting else f"cell {name}"
                raise MarbleError(f"{path}: {where}: {error}") from None
            names |= dict.fromkeys(loaded.rewards.names)
            cells += [Cell(name, s, (*words, f"train.seed={s}"), setting) for s in some]
    judge = _names(data, "judge", path)
    unknown = [name for name in judge if name not in names]
    if unknown:
        known = ", ".join(names)
        raise MarbleError(f"{path}: judge: no cell trains on {unknown[0]}; known: {known}")
    show = _names(data, "show", path)
    for name in show:
        if name not in every:
            raise MarbleError(f"{path}: show: there is no cell {name}")
    about = " ".join(str(data.get("description", "")).split())
    return Study(path.stem, about, recipe, cells, judge, trainer, show)


def _names(data: Mapping[str, Any], key: str, path: Path) -> tuple[str, ...]:
    given = data.get(key) or []
    if not isinstance(given, list):
        raise MarbleError(f"{path}: {key}: give a list of names")
    return tuple(map(str, given))


def _seeds(given: Any, where: str) -> list[int]:
    if not isinstance(given, list) or not given or not all(type(s) is int for s in given):
        raise MarbleError(f"{where}: give a list of whole numbers, e.g. [0, 1, 2]")
    return given


def _lists(
    data: Mapping[str, Any], key: str, path: Path, known: Container[str], what: str
) -> dict[str, list[Any]]:
    """The mapping under `key`, of names to lists."""
    given = data.get(key) or {}
    if not isinstance(given, dict) or not all(isinstance(v, list) for v in given.values()):
        raise MarbleError(f"{path}: {key}: give a mapping of {what} to a list")
    for name in given:
        if str(name) not in known:
            raise MarbleError(f"{path}: {key}: there is no {what} {name}")
    return {str(name): values for name, values in given.items()}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        meant = misspelt(str(path))
        hint = f"did you mean {meant}?" if meant else "studies/ in the repository has examples"
        raise MarbleError(f"{path}: no such study file; {hint}")
    data = read(path, words_only=False)
    if not isinstance(data, dict) or not isinstance(data.get("cells"), dict) or not data["cells"]:
        raise MarbleError(
            f"{path}: a study needs `cells`, a mapping of name to overrides, such as "
            "{marble: {}, uniform: {balance.method: uniform}}"
        )
    for key in data:
        # Keys with a dot before them hold what YAML anchors refer to.
        if key not in KEYS and not str(key).startswith("."):
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(KEYS)}"
            raise MarbleError(f"{path}: unknown key {key}; {hint}")
    return data


def _mapping(value: Any, path: Path, key: str) -> dict[str, Mapping[str, Any] | None]:
    if not isinstance(value, dict) or any(
        own is not None and not isinstance(own, dict) for own in value.values()
    ):
        raise MarbleError(f"{path}: {key}: give a mapping of name to overrides")
    for name in map(str, value):  # a part of the run's folder, which must not lead out of the study
        if name and (name.startswith(".") or len(name) > 100 or re.search(r"[/\\\x00-\x1f]", name)):
            raise MarbleError(f"{path}: {key}: {name[:100]!r} cannot be the name of a folder")
    return {str(name): own for name, own in value.items()}


def _recipe(name: str, study: Path) -> str:
    """A recipe's name, or its file beside the study."""
    with suppress(OSError):  # a name too long for a file is a recipe's, or nobody's
        beside = study.parent / name
        return str(beside) if name.endswith(".yaml") and beside.is_file() else name
    return name


def _word(key: str, value: Any) -> str:
    """`key=value` as it would be typed: values are YAML in one line."""
    text = dump(value, default_flow_style=True, width=10**6)
    return f"{key}={text.removesuffix('...' + chr(10)).strip()}"
