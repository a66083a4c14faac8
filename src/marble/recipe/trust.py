"""Code that a recipe names, and when it runs unasked.

A recipe can name any Python function as a reward: it is a program. One that somebody names on the
command line is theirs to run. A run folder is data that travels, and its `config.yaml` is a recipe
too; so code that it names runs only if this account has trained with it before, or on `--trust`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from marble.errors import MarbleError
from marble.recipe.balance import Reward
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
    if trusted or not is_run_folder(origin):
        return
    for entry in own_code(recipe):
        typed = any(entry.reward in word for word in overrides)
        if not typed and not _mark(entry).exists():
            raise MarbleError(
                f"{origin}: its recipe names code that is not marble's, {entry.reward} (reward "
                f"{entry.name}), which this account has not trained with; look at it, and add "
                "--trust to run it"
            )


def remember(recipe: Recipe) -> None:
    """Notes the code that this account trains with; where that cannot be written, it asks again."""
    for entry in own_code(recipe):
        with suppress(OSError):
            mark = _mark(entry)
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch()


def own_code(recipe: Recipe) -> Iterator[Reward]:
    """Rewards that are not marble's."""
    for entry in (*recipe.rewards.train, *recipe.rewards.heldout):
        if ":" in entry.reward and not entry.reward.startswith(OURS):
            yield entry


def _mark(entry: Reward) -> Path:
    """The file that stands for a piece of code with its options, in this account's state."""
    from marble.rewards.locate import locate

    place: Path | None = None
    with suppress(MarbleError):
        place = locate(entry.reward)
    told = json.dumps([entry.reward, str(place), entry.options], sort_keys=True, default=str)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "marble" / "trusted" / hashlib.sha256(told.encode()).hexdigest()
