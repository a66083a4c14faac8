"""Code that a recipe names, and when it runs unasked.

A recipe can name Python code: a reward, an objective, a rule. It is a program. One that somebody
names on the command line is theirs to run. A run folder is data that travels, and its `config.yaml`
is a recipe too; so code that it names runs only if this account has trained with it before, or on
`--trust`.
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
from marble.recipe.schema import Recipe

#: Modules whose classes are marble's own rewards.
OURS = "marble.rewards."


def is_run_folder(name: str | Path | None) -> bool:
    """Whether a recipe of that name comes out of a run folder."""
    if name is None:
        return False
    path = Path(name)
    with suppress(OSError, ValueError):
        return path.is_dir() or (path.name == "config.yaml" and path.is_file())
    return False


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
        if trusted or not is_run_folder(origin):
            return
        typed = any(name in word for word in overrides)
        if not typed and not _mark(name, options).exists():
            raise MarbleError(
                f"{origin}: its recipe names code that is not marble's, {what}, which this "
                "account has not trained with; look at it, and add --trust to run it"
            )

    return guard


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
