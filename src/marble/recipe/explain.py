"""A validation error as one line that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from marble.objectives import OBJECTIVES, objective_class
from marble.recipe.schema import Recipe

# Keys that people look for in another place, or that other tools call otherwise.
_ELSEWHERE = {
    "balance.weights": "rewards.NAME.weight",
    "balance.n": "balance.every",
    "balance.progress.twins": "now balance.progress.paired",
    "rewards.priority": "balance.priorities",
    "train.lr": "optim.lr",
    "train.max_steps": "train.steps",
    "train.epochs": "train.steps",
    "train.gradient_checkpointing": "model.gradient_checkpointing",
    "train.batch": "train.batch_size",
    "model.lora_rank": "model.lora.rank",
}

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "finite_number": "a finite number",
}


def explain(error: ValidationError, raw: Any, model: type[BaseModel] = Recipe) -> str:
    """The first problem, as `dotted.path: what is wrong and what is right`, and how many more."""
    problems = _worst_first(error.errors())
    where = [_field(p, raw) for p in problems]
    line = _one(problems[0], raw, model)
    either = [p for p, loc in zip(problems, where) if loc == where[0] != p["loc"]]
    if len(either) > 1:  # a field of several types, none of which the value has
        line = _any_of(either, where[0], raw)
    more = len(set(where)) - 1
    return f"{line} (and {more} more)" if more > 0 else line


def known_paths(model: type[BaseModel] = Recipe, prefix: str = "") -> list[str]:
    """Dotted paths of every fixed field, e.g. `balance.rho`."""
    paths = []
    for name, info in model.model_fields.items():
        paths.append(prefix + name)
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            paths += known_paths(kind, f"{prefix}{name}.")
    return paths


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, if any is alike at all."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _worst_first(problems: list[Any]) -> list[Any]:
    """An unknown key explains a missing one, so it is told first."""
    return sorted(problems, key=lambda p: p["type"] != "extra_forbidden")


def _field(problem: Any, raw: Any) -> tuple[Any, ...]:
    """Place of the field; for one of several types pydantic adds which of them it tried."""
    *place, last = problem["loc"] or (None,)
    here = raw
    for part in place:
        here = _step(here, part)
    tried = problem["type"] != "missing" and last is not None and here == problem.get("input")
    return tuple(place) if tried else problem["loc"]


def _any_of(problems: Sequence[Any], loc: tuple[Any, ...], raw: Any) -> str:
    path = _dotted(loc, raw)
    told = [_one({**p, "loc": loc}, raw, BaseModel).removeprefix(f"{path}: ") for p in problems]
    wanted = [text.partition(", got ")[0].removeprefix("must be ") for text in told]
    return f"{path}: must be {', or '.join(wanted)}, got {_show(problems[0].get('input'))}"


def _one(problem: Any, raw: Any, model: type[BaseModel]) -> str:
    kind, loc, value = problem["type"], problem["loc"], problem.get("input")
    ctx = problem.get("ctx", {})
    path = _dotted(loc, raw)
    if kind == "extra_forbidden":
        return _unknown_key(loc, path, model)
    if kind == "missing":
        return f"{path}: is required"
    if kind in _TYPES:
        return f"{path}: must be {_TYPES[kind]}, got {_show(value)}"
    if kind == "literal_error":
        return f"{path}: {_choice(ctx.get('expected', ''), value)}"
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        sign = {"greater_than": ">", "greater_than_equal": "≥", "less_than": "<"}.get(kind, "≤")
        bound = next(iter(ctx.values()))
        return f"{path}: must be {sign} {bound:g}, got {_show(value)}"
    if kind == "string_pattern_mismatch":
        return f"{path}: {_show(value)} is no name; use letters, digits, '-' and '_'"
    if kind in ("too_short", "string_too_short"):
        return f"{path}: must not be that short, got {_show(value)}"
    if kind == "value_error":
        message = str(ctx.get("error", problem["msg"]))
        return f"{path}.{message}" if path else message
    return f"{path}: {problem['msg']}, got {_show(value)}"


def _dotted(loc: tuple[Any, ...], raw: Any) -> str:
    """Path as the user would override it: rewards by name, sources by key."""
    parts: list[str] = []
    here = raw
    for part in loc:
        if part == "[key]":
            continue
        here = _step(here, part)
        if isinstance(part, int) and isinstance(here, dict) and "name" in here:
            parts = [*parts[:-1], str(here["name"])] if parts[:1] == ["rewards"] else parts
        else:
            parts.append(str(part))
    return ".".join(parts)


def _step(here: Any, part: Any) -> Any:
    try:
        return here[part]
    except (KeyError, IndexError, TypeError):
        return None


def _unknown_key(loc: tuple[Any, ...], path: str, model: type[BaseModel]) -> str:
    key = str(loc[-1])
    generic = f"{loc[0]}.{key}" if loc[0] == "rewards" else path
    if generic in _ELSEWHERE:
        return f"{path}: unknown key; it is {_ELSEWHERE[generic]}"
    siblings = _fields_at(loc[:-1], model)
    having = _objectives_with(key) if loc[:-1] == ("objective",) else []
    if having:
        return f"{path}: unknown key; an option of objective.name {' and '.join(having)}"
    near = nearest(key, siblings)
    prefix = path.removesuffix(key)
    if near:
        return f"{path}: unknown key; did you mean {prefix}{near}?"
    same = [p for p in known_paths(model) if p.split(".")[-1] == key]
    if same:
        *others, last = sorted(same, key=lambda p: not p.startswith("train."))
        either = f"{', '.join(others)} or {last}" if others else last
        return f"{path}: unknown key; did you mean {either}?"
    far = nearest(path, known_paths(model))
    if far and far.split(".")[-1] not in siblings:
        return f"{path}: unknown key; did you mean {far}?"
    return f"{path}: unknown key; known here: {', '.join(siblings)}"


def _objectives_with(key: str) -> list[str]:
    return [name for name in OBJECTIVES if key in objective_class(name).Options.model_fields]


def _fields_at(loc: tuple[Any, ...], model: type[BaseModel]) -> list[str]:
    """Field names of the section that `loc` points to, through lists and mappings."""
    for part in loc:
        info = model.model_fields.get(part) if isinstance(part, str) else None
        if info is not None:
            model = _section_in(info.annotation) or model
    return list(model.model_fields)


def _section_in(kind: Any) -> type[BaseModel] | None:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for arg in get_args(kind) if (found := _section_in(arg))), None)


def _choice(expected: str, value: Any) -> str:
    options = expected.replace("'", "").replace(" or ", ", ")
    options = options.replace("True", "true").replace("False", "false")  # as YAML has them
    near = nearest(str(value), options.split(", ")) if isinstance(value, str) else None
    hint = f"; did you mean {near}?" if near else ""
    return f"must be one of {options}, got {_show(value)}{hint}"


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
