"""Finding what a recipe names: a built-in, `module:Class` of yours, or an entry point.

Objectives, rules and model families are found alike. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from marble.errors import MarbleError

Guard = Callable[[str, str], None]
"""Raises for code that must not run: what it is, and its name."""
_guard: ContextVar[Guard] = ContextVar("guard", default=lambda what, name: None)


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Meanwhile nothing that a recipe names is imported unless `guard` lets it pass."""
    token = _guard.set(guard)
    try:
        yield
    finally:
        _guard.reset(token)


def find(kind: str, name: str, built_in: Mapping[str, str | type], base: type) -> type[Any]:
    """The class that `name` stands for; it must be a subclass of `base`.

    kind: "objective", "rule", …; packages offer theirs under the entry point `marble.{kind}s`.
    built_in: name → `module:Class`, or the class itself.
    name: a built-in, an entry point, `package.module:Class` or `file.py:Class`.
    """
    if ":" in name and name not in built_in:
        _guard.get()(f"{kind} {name}", name)
    target = built_in.get(name) or (name if ":" in name else _offered(kind).get(name))
    if target is None:
        known = list({**built_in, **_offered(kind)})
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise MarbleError(f"no {kind} called {name!r}; {hint}")
    found = target if isinstance(target, type) else load(kind, target)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise MarbleError(
            f"{kind} {name}: {target} is no {base.__name__}; subclass "
            f"{base.__module__}.{base.__qualname__}"
        )
    return found


def load(kind: str, target: str) -> Any:
    """What `package.module:Name` or `file.py:Name` stands for."""
    place, _, attribute = target.rpartition(":")
    try:
        module = (
            _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        )
    except MarbleError:
        raise
    except ModuleNotFoundError as error:
        raise MarbleError(f"{kind} {target}: cannot import {place}: {error}") from error
    except Exception as error:
        raise MarbleError(
            f"{kind} {target}: importing {place} failed: {type(error).__name__}: {error}"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise MarbleError(f"{kind} {target}: {place} has no {attribute!r}{hint}") from None


def _offered(kind: str) -> dict[str, str]:
    """Entry points of installed packages: name → `module:Class`."""
    return {entry.name: entry.value for entry in entry_points(group=f"marble.{kind}s")}


def _from_file(path: Path) -> ModuleType:
    """The module of a file, made once: a class must be the same whenever it is asked for."""
    if not path.is_file():
        raise MarbleError(f"{path} does not exist")
    name = f"marble_user_{path.stem}_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
