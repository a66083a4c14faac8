"""Code that a recipe names, and when it runs unasked.

A recipe can name Python code: a reward, an objective, a rule. It is a program. One that somebody
names on the command line is theirs to run. A run folder is data that travels, and its `config.yaml`
is a recipe too; so code that it names runs only if this account has trained with it before, or on
`--trust`. A recipe that extends a run folder has its code from there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marble.errors import MarbleError
from marble.plugins import Guard
from marble.recipe.files import chain, find, of_a_run, placed
from marble.recipe.schema import Recipe
from marble.recipe.yamlio import parse

#: Modules whose classes are marble's own rewards.
OURS = "marble.rewards."


def require_trust(
    recipe: Recipe, origin: str | Path | None, overrides: Sequence[str], trusted: bool
) -> None:
    """Refuses the recipe of a run folder that names code which nobody here has asked for."""
    guard = guard_of(origin, overrides, trusted)
    for what, name, options in own_code(recipe):
        guard(what, name, options)


def guard_of(origin: str | Path | None, overrides: Sequence[str], trusted: bool) -> Any:
    """Raises for code that a recipe of this origin must not run unasked."""

    def guard(what: str, name: str, options: Any = None) -> None:
        if trusted or origin is None:
            return
        run, asked = _foreign(origin)
        if run is None or name in asked or name in _typed(overrides):
            return
        if not _mark(name, options).exists():
            through = "" if run == find(str(origin)) else f" (which extends {run.parent})"
            raise MarbleError(
                f"{origin}{through}: its recipe names code that is not marble's, {what}, which "
                "this account has not trained with; look at it, and add --trust to run it"
            )

    return guard


def _foreign(origin: str | Path) -> tuple[Path | None, set[str]]:
    """The run folder's recipe that one of this name is, or extends; None without one. And what
    the files above it say, which are somebody's own: who names code there has asked for it."""
    asked: set[str] = set()
    for path, raw in chain(find(str(origin))):
        if of_a_run(path):
            return path, asked
        asked.update(_texts(raw))
    return None, asked


def _typed(overrides: Sequence[str]) -> set[str]:
    """What was said on the command line."""
    found: set[str] = set()
    for word in overrides:
        key, _, value = word.partition("=")
        said = parse(value, f"override {key}")
        found.update(_texts(placed(said, Path.cwd(), named=key.strip().endswith(".reward"))))
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def refuse_all(origin: str | Path) -> Guard:
    """For readers that have no use for anybody's code."""

    def guard(what: str, name: str) -> None:
        raise MarbleError(f"{origin}: its recipe names {what}, which is not run here")

    return guard


def remember(recipe: Recipe) -> None:
    """Notes the code that this account trains with; where that cannot be written, it asks again."""
    for _, name, options in own_code(recipe):
        with suppress(OSError):
            mark = _mark(name, options)
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch()


def own_code(recipe: Recipe) -> Iterator[tuple[str, str, Any]]:
    """(words, name, options) of what is not marble's."""
    for entry in (*recipe.rewards.train, *recipe.rewards.heldout):
        if ":" in entry.reward and not entry.reward.startswith(OURS):
            yield f"{entry.reward} (reward {entry.name})", entry.reward, entry.options
    for kind, name in (("objective", recipe.objective.name), ("rule", recipe.balance.method)):
        if ":" in name:
            yield f"{kind} {name}", name, None


def _mark(name: str, options: Any) -> Path:
    """The file that stands for a piece of code with its options, in this account's state."""
    from marble.rewards.locate import locate

    place: Path | None = None
    with suppress(MarbleError):
        place = locate(name)
    told = json.dumps([name, str(place), options], sort_keys=True, default=str)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "marble" / "trusted" / hashlib.sha256(told.encode()).hexdigest()
