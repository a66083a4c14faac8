"""Every field of a recipe, for `marble recipes` and the documentation."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from marble.harmonise import RULES
from marble.objectives import OBJECTIVES, objective_class
from marble.objectives.registry import DefaultOptions
from marble.recipe.balance import Balance
from marble.recipe.schema import Recipe


@dataclass(frozen=True)
class FieldDoc:
    """One line of the reference."""

    path: str
    kind: str
    default: Any
    description: str


def reference(model: type[BaseModel] = Recipe, prefix: str = "") -> list[FieldDoc]:
    """All fields in order; entries of lists and mappings appear as `rewards.train.*.weight`."""
    docs = []
    for name, info in model.model_fields.items():
        path = prefix + name
        section, many = _section(info.annotation)
        if section is None or many:
            docs.append(
                FieldDoc(path, _kind(info.annotation), _default(info), info.description or "")
            )
        if section is not None:
            docs += reference(section, f"{path}.*." if many else f"{path}.")
        docs += _beside(path)
    return docs


def _beside(path: str) -> list[FieldDoc]:
    """Options that objectives and rules declare beside themselves; one that several share, once."""
    found: list[tuple[str, type[BaseModel], Iterable[str]]] = []
    choice = "name" if path == "objective" else "method"
    if path == "objective":
        for name in OBJECTIVES:
            options = objective_class(name).Options
            new = [f for f in options.model_fields if f not in DefaultOptions.model_fields]
            changed = [f for f in options.model_fields if f not in new and _differs(options, f)]
            found.append((name, options, [*new, *changed]))
    elif path == "balance.options":
        for name, rule in RULES.items():
            section = Balance.model_fields.get(name)
            if section is None or _section(section.annotation)[0] is None:  # else they are there
                found.append((name, rule.Options, rule.Options.model_fields))
    shared: dict[tuple[str, ...], tuple[FieldInfo, list[str]]] = {}
    for name, declared, fields in found:
        for field in fields:
            info = declared.model_fields[field]
            told = field, _kind(info.annotation), repr(_default(info)), info.description or ""
            shared.setdefault(told, (info, []))[1].append(name)
    return [
        FieldDoc(f"{path}.{field} ({choice}: {', '.join(names)})", kind, _default(info), about)
        for (field, kind, _, about), (info, names) in shared.items()
    ]


def _differs(options: type[BaseModel], field: str) -> bool:
    """Whether it means something else here, or has another default."""
    own, usual = options.model_fields[field], DefaultOptions.model_fields[field]
    return field != "name" and (own.description, own.default) != (usual.description, usual.default)


def _section(kind: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section a field holds, and whether it holds many of them."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind, False
    for arg in get_args(kind):
        found, _ = _section(arg)
        if found is not None:
            return found, get_origin(kind) in (list, dict)
    return None, False


def _default(info: FieldInfo) -> Any:
    value = info.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else value


def _kind(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        return _kind(get_args(kind)[0])
    if origin is Literal:
        shown = (str(arg).lower() if isinstance(arg, bool) else str(arg) for arg in get_args(kind))
        return " | ".join(shown)
    if origin in (Union, types.UnionType):
        return " | ".join("null" if arg is type(None) else _kind(arg) for arg in get_args(kind))
    if origin is list:
        return f"list of {_kind(get_args(kind)[0])}"
    if origin is dict:
        return f"mapping to {_kind(get_args(kind)[1])}"
    names = {int: "integer", float: "number", str: "text", bool: "true | false", Any: "anything"}
    return names.get(kind, getattr(kind, "__name__", str(kind)).lower())
