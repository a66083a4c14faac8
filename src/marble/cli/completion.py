"""What the shell offers when a recipe is being typed. `marble --install-completion` turns it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def recipe_words(incomplete: str) -> Iterator[str]:
    """Recipe names, YAML files and folders here, and `section.field=` once there is a dot."""
    from marble.recipe import list_recipes, reference
    from marble.recipe.explain import known_paths

    if "." in incomplete and "/" not in incomplete:
        leaves = {doc.path for doc in reference()}
        known = [path for path in known_paths() if path in leaves]
        yield from (f"{path}=" for path in known if path.startswith(incomplete))
    yield from (name for name in list_recipes() if name.startswith(incomplete))
    yield from paths(incomplete, ".yaml")


def target_words(incomplete: str) -> Iterator[str]:
    """Names of models that need no file, and folders here."""
    yield from (name for name in ("base", "studio-trained") if name.startswith(incomplete))
    yield from paths(incomplete, ".safetensors")


def kind_words(incomplete: str) -> Iterator[str]:
    """What `marble prompts` makes."""
    from marble.prompts import KINDS

    yield from (kind for kind in KINDS if kind.startswith(incomplete))


def paths(incomplete: str, ending: str = "") -> Iterator[str]:
    """Folders, and files with this ending, that begin with what was typed."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete or ".").parent
    try:
        entries = sorted(folder.expanduser().iterdir())
    except OSError:
        return
    for entry in entries:
        shown = entry.name if str(folder) == "." else str(folder / entry.name)
        if shown.startswith(incomplete.removeprefix("./")) and not entry.name.startswith("."):
            if entry.is_dir():
                yield f"{shown}/"
            elif entry.name.endswith(ending):
                yield shown
