"""Recipes from files: inheritance, dotted overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marble.errors import MarbleError, RecipeError
from marble.harmonise import RULES
from marble.objectives import OBJECTIVES, objective_class
from marble.objectives.registry import DEFAULT
from marble.plugins import guarded
from marble.recipe.balance import Rewards
from marble.recipe.explain import explain, nearest
from marble.recipe.files import chain, find, placed
from marble.recipe.schema import Recipe, recipe_class
from marble.recipe.trust import guard_of
from marble.recipe.yamlio import parse

MOST_PARTS = 20
"""Parts of a dotted override; no field is that deep."""


def load_recipe(
    name_or_path: str | Path = "studio", overrides: Sequence[str] = (), *, trust: bool = False
) -> Recipe:
    """The validated recipe of that name or file, with `a.b=value` overrides applied.

    A file may say `extends: other` (a shipped name, or a path relative to itself): its keys are
    laid over the other's, mappings key by key, lists as a whole. `rewards.add` and
    `rewards.drop` change the inherited list of training rewards without repeating it. A reward
    `file.py:callable` is looked for beside the file that names it, then in the current folder.

    An objective or a rule of one's own is imported here. Where a run folder names it, only if
    this account has trained with it, or with `trust`.
    """
    path = find(str(name_or_path))
    raw = _merged(chain(path))
    raw["name"] = raw.get("name", re.sub(r"^\.+|[\\\x00-\x1f\x7f]", "", path.stem)[:100])
    with guarded(guard_of(name_or_path, overrides, trust)):
        return recipe_from(raw, overrides, where=str(name_or_path))


def recipe_from(
    raw: dict[str, Any], overrides: Sequence[str] = (), where: str = "recipe"
) -> Recipe:
    """A recipe from plain data (the same structure as the YAML)."""
    merged = _layer({}, raw, where)
    # Which objective and method it is comes first: their settings may stand before the name.
    names = ("objective.name=", "balance.method=")
    for override in sorted(overrides, key=lambda text: not text.startswith(names)):
        merged = _override(merged, override)
    try:
        model = recipe_class(merged)
    except MarbleError as error:
        name = merged["objective"]["name"]
        told = f"{name} is a method; set balance.method={name}" if name in RULES else str(error)
        raise RecipeError(f"{where}: objective.name: {told}") from None
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise RecipeError(f"{where}: {explain(error, merged, model)}") from None


def _merged(files: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    """Every file's data laid over what it extends."""
    merged: dict[str, Any] = {}
    for path, raw in reversed(files):
        # The child is another recipe: it does not answer to its parent's name.
        merged.pop("name", None)
        merged.pop("description", None)
        merged = _layer(merged, raw, str(path))
    return merged


def _layer(base: dict[str, Any], top: dict[str, Any], where: str) -> dict[str, Any]:
    """`top` laid over `base`, shorthands written out."""
    top = _written_out(top)
    rewards = top.get("rewards")
    changes = {}
    if isinstance(rewards, dict):
        changes = {key: rewards.pop(key) for key in ("add", "drop") if key in rewards}
    merged = _merge(_for_method(_for_objective(copy.deepcopy(base), top), top), top)
    if changes:
        train = merged["rewards"].get("train", [])
        if not isinstance(train, list):
            raise RecipeError(f"{where}: rewards.train: must be a list, got {train!r}")
        merged["rewards"]["train"] = _changed(train, changes, where)
    return merged


def _for_objective(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`base` without the settings of its objective that mean something else to the one in `top`:
    β or a KL weight of NFT would be taken over by DPO, whose own are a thousand times as large."""
    below, above = base.get("objective"), top.get("objective")
    if not isinstance(below, dict) or not isinstance(above, dict):
        return base
    old, new = str(below.get("name", DEFAULT)), str(above.get("name", ""))
    if old == new or old not in OBJECTIVES or new not in OBJECTIVES:
        return base  # code of the user's own is not looked at here
    fields = [objective_class(name).Options.model_fields for name in (old, new)]
    for key in set(below) - {"name"}:
        one, other = (own.get(key) for own in fields)
        if one and (other is None or one.description != other.description):
            del below[key]
    return base


def _for_method(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`base` without its method's own options where `top` names another method."""
    below, above = base.get("balance"), top.get("balance")
    if isinstance(below, dict) and isinstance(above, dict):
        new = above.get("method")
        if new is not None and new != below.get("method"):
            below.pop("options", None)
    return base


def _merge(base: Any, top: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(top, dict)):
        return copy.deepcopy(top)
    for key, value in top.items():
        base[key] = _merge(base[key], value) if key in base else copy.deepcopy(value)
    return base


def _changed(train: list[Any], changes: dict[str, Any], where: str) -> list[Any]:
    drop = changes.get("drop") or []
    drop = [drop] if isinstance(drop, str) else drop
    if not isinstance(drop, list):
        raise RecipeError(f"{where}: rewards.drop: name rewards, e.g. [ocr]; got {drop!r}")
    names = [_name(reward) for reward in train]
    for name in drop:
        if name not in names:
            raise RecipeError(
                f"{where}: rewards.drop: no reward called {name!r}; known: {', '.join(names)}"
            )
    add = changes.get("add") or []
    add = add if isinstance(add, list) else [add]
    return [r for r in train if _name(r) not in drop] + [_reward(entry) for entry in add]


def _written_out(raw: dict[str, Any]) -> dict[str, Any]:
    """Shorthands in full: a list of rewards, a reward's bare name, a source's bare path."""
    raw = copy.deepcopy(raw)
    rewards = raw.get("rewards")
    if isinstance(rewards, list):
        raw["rewards"] = rewards = {"train": rewards}
    if isinstance(rewards, dict):
        for key in ("train", "heldout"):
            if isinstance(rewards.get(key), list):
                rewards[key] = [_reward(entry) for entry in rewards[key]]
    data = raw.get("data")
    if isinstance(data, dict) and isinstance(data.get("sources"), dict):
        sources = data["sources"]
        data["sources"] = {k: {"path": v} if isinstance(v, str) else v for k, v in sources.items()}
    return raw


def _reward(entry: Any) -> Any:
    return {"name": entry} if isinstance(entry, str) else entry


def _name(entry: Any) -> str:
    return str(entry.get("name")) if isinstance(entry, dict) else str(entry)


def _override(raw: dict[str, Any], text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or len(parts) > MOST_PARTS:
        raise RecipeError(f"'{text}': an override looks like section.key=value")
    parsed = parse(value, f"override {key}")
    if parts[0] == "rewards":
        parsed = placed(parsed, Path.cwd(), named=parts[-1] == "reward")
    if parts[0] == "extends":
        raise RecipeError("extends: name the recipe to start from instead of overriding it")
    if parts[0] == "rewards" and len(parts) > 2 and parts[1] not in Rewards.model_fields:
        return _override_reward(raw, parts[1], parts[2:], parsed)
    layer: Any = parsed
    for part in reversed(parts):
        layer = {part: layer}
    # A list element by its number: balance.stages.0.steps=5.
    if any(map(_is_index, parts)):
        raw = copy.deepcopy(raw)
        if _set_in_list(raw, parts, parsed):
            return raw
    return _layer(raw, layer, "override")


def _override_reward(raw: dict[str, Any], name: str, rest: list[str], value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(raw)
    rewards = raw.get("rewards")
    rewards = rewards if isinstance(rewards, dict) else {}
    lists = [rewards.get(key) for key in ("train", "heldout")]
    entries = [entry for part in lists if isinstance(part, list) for entry in part]
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name:
            _set(entry, rest, value)
            return raw
    names = [_name(entry) for entry in entries]
    near = nearest(name, [*names, *Rewards.model_fields])
    hint = f"did you mean {near}?" if near else f"known: {', '.join(names)}"
    raise RecipeError(f"rewards.{name}: no such reward; {hint}")


def _set(target: dict[str, Any], parts: Iterable[str], value: Any) -> None:
    *path, last = parts
    for part in path:
        inner = target.get(part)
        target[part] = inner if isinstance(inner, dict) else {}
        target = target[part]
    target[last] = value


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10


def _set_in_list(raw: Any, parts: list[str], value: Any) -> bool:
    """Sets an element inside an existing list; False if the path leads to no list."""
    here, in_list = raw, False
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if isinstance(here, list):
            if not _is_index(part) or int(part) >= len(here):
                raise RecipeError(
                    f"{'.'.join(parts)}: '{part}' is no element of a list of {len(here)}"
                )
            key: Any = int(part)
            in_list = True
        elif isinstance(here, dict):
            key = part
        else:
            return False
        if last:
            here[key] = value
        elif isinstance(here, dict):
            here = here.setdefault(key, {})
        else:
            here = here[key]
    return in_list
