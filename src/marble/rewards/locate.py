"""Where a user's own reward is written, found out without running a line of it."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from marble.errors import MarbleError


def locate(reward: str) -> Path | None:
    """The file of a ``file.py:callable`` or ``package.module:callable``, which must define it.

    None for a module without a source file, such as one compiled into Python.
    """
    place, _, attribute = reward.rpartition(":")
    path = Path(place) if place.endswith(".py") else _module(place)
    if path is None:
        return None
    if not path.is_file():
        raise absent(path)
    if path.suffix != ".py":
        return path
    try:
        names = set(_defined(ast.parse(path.read_bytes()).body))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MarbleError(f"reward file {path}: {type(error).__name__}: {error}") from None
    if attribute not in names and not names & {"*", "__getattr__"}:
        near = difflib.get_close_matches(attribute, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise MarbleError(f"reward {reward}: {place} has no {attribute!r}{hint}")
    return path.resolve()


def absent(path: Path) -> MarbleError:
    return MarbleError(
        f"reward file {path} does not exist; put it beside the recipe that names it, or name it by "
        "its whole path"
    )


def _module(name: str) -> Path | None:
    """The file of a module. Its packages are looked up, not imported: importing would run them."""
    inside: Sequence[str] | None = None
    parts = name.split(".")
    spec: ModuleSpec | None = None
    for count in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:count]), inside)
        if spec is None:
            raise MarbleError(
                f"reward {name}: cannot import {name}: no module named "
                f"{'.'.join(parts[:count])!r}; install the package it is in"
            )
        inside = spec.submodule_search_locations
        if inside is None and count < len(parts):
            raise MarbleError(f"reward {name}: {'.'.join(parts[:count])} is not a package")
    assert spec is not None
    return Path(spec.origin) if spec.has_location and spec.origin else None


def _spec(name: str, inside: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, inside)
        if spec is not None:
            return spec
    return None


def _defined(body: Sequence[ast.AST]) -> Iterator[str]:
    """Names that a module's text binds, branches and all; `*` for what an import brings."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not isinstance(node, ast.Lambda):
            yield from _defined(list(ast.iter_child_nodes(node)))
