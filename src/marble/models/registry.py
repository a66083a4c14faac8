"""Which families there are, and which one a pipeline belongs to."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from marble.errors import MarbleError
from marble.models.family import Facts, Family, Published
from marble.models.folder import NotHere, find_local, pipeline_index
from marble.plugins import load

FAMILIES = (
    "marble.models.sd3:SD3",
    "marble.models.sana:Sana",
    "marble.models.flux2:Flux2",
    "marble.models.zimage:ZImage",
    "marble.models.qwen:Qwen",
    "marble.models.flux:Flux",
)
"""Built in. Others: the entry point group below, or `model.family` in a recipe."""
GROUP = "marble.families"


@cache
def families() -> tuple[type[Family], ...]:
    """The built-in ones, then those of installed packages."""
    installed = (point.value for point in entry_points(group=GROUP))
    return tuple(resolve(target) for target in (*FAMILIES, *installed))


def resolve(target: str) -> type[Family]:
    """`package.module:Class` or `file.py:Class`."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise MarbleError(f"model.family: '{target}' is not of the form package.module:Class")
    found = load("model.family", target)
    if not (inspect.isclass(found) and issubclass(found, Family)):
        raise MarbleError(f"model.family: {target} is no marble.models.family.Family")
    return found


def family_of(folder: Path, named: str | None = None) -> type[Family]:
    """The family that opens this folder; `named`: a recipe's `model.family`."""
    pipeline = pipeline_index(folder)["_class_name"]
    if named is not None:
        family = resolve(named)
        if family.pipeline != pipeline:
            raise MarbleError(
                f"{folder}: holds a {pipeline}; model.family {named} is for a {family.pipeline}"
            )
        return family
    known = {family.pipeline: family for family in families()}
    if pipeline not in known:
        raise MarbleError(
            f"{folder}: holds a {pipeline}, which is not supported; supported: "
            f"{', '.join(known)}; another can be added in one file (docs/extend-model.md)"
        )
    return known[pipeline]


def published(hub_id: str) -> Published | None:
    """What is known about a hub id, if a family names it."""
    return next((f.published[hub_id] for f in families() if hub_id in f.published), None)


def facts(path: str, revision: str | None = None, named: str | None = None) -> Facts:
    """Sizes of a model: from its files, or as published if they are not here."""
    try:
        folder = find_local(path, revision)
    except NotHere:
        for family in (*families(), *([resolve(named)] if named else ())):
            if path in family.published:
                return family.published_facts(path)
        raise
    return family_of(folder, named).facts(folder)


def import_pipelines(path: str) -> None:
    """Imports what loading this model will import, for processes that are forked afterwards."""
    import diffusers

    from marble.models.quiet import quiet

    with quiet():
        getattr(diffusers, family_of(find_local(path)).pipeline)
