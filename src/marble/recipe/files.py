"""The files of recipes: where a name leads, what a file extends, whose folder it is in."""

from __future__ import annotations

from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from marble.errors import RecipeError
from marble.recipe.explain import nearest
from marble.recipe.yamlio import parse, read


def list_recipes() -> dict[str, str]:
    """Names of the recipes that ship with marble, and a line on each."""
    found = {}
    for path in sorted(_shipped().glob("*.yaml"), key=lambda path: path.stem):
        raw = parse(path.read_text(encoding="utf-8"), path.name)
        found[path.stem] = str(raw.get("description", ""))
    return found


def _shipped() -> Path:
    return Path(str(resources.files("marble"))) / "recipes"


def find(name: str, beside: Path | None = None) -> Path:
    # A name that no file can have (too long, ~nobody) is the name of none.
    with suppress(OSError, RuntimeError, ValueError):
        shipped = _shipped() / f"{name}.yaml"
        if shipped.is_file():
            return shipped
        path = Path(name).expanduser()
        if beside is not None and not path.is_absolute():
            path = beside / path
        if path.is_file():
            return path
        if path.is_dir() and (path / "config.yaml").is_file():
            return path / "config.yaml"
    near = misspelt(name) or nearest(name, list_recipes())
    hint = f"did you mean {near}?" if near else "`marble recipes` lists those that ship with marble"
    raise RecipeError(f"no recipe or file called '{name}'; {hint}")


def misspelt(name: str) -> str | None:
    """A YAML file in the same folder whose name differs by its ending or a letter or two."""
    try:
        path = Path(name).expanduser()
        there = [file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml")]
    except (OSError, RuntimeError, ValueError):
        return None
    stems = {Path(name).stem: name for name in there}
    close = nearest(path.stem, stems)  # by endings alone all of them are alike
    return None if close is None else str(path.parent / stems[close])


def chain(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """A recipe's file and those it extends, nearest first, with the data of each.

    Rewards `file.py:callable` have their whole path in them, so that the recipe that a run keeps
    works from anywhere.
    """
    files: list[tuple[Path, dict[str, Any]]] = []
    seen: list[Path] = []
    while True:
        place = path.resolve()
        if place in seen:
            loop = " → ".join(p.name for p in (*seen, place))
            raise RecipeError(f"{path.name}: recipes extend each other in a circle ({loop})")
        seen.append(place)
        raw = read(path)
        if not isinstance(raw, dict):
            kind = {type(None): "nothing", list: "a list"}.get(type(raw), "a single value")
            raise RecipeError(
                f"{path}: a recipe is a mapping of sections, and this file holds {kind}; begin it "
                "with `extends: studio`"
            )
        if "rewards" in raw:
            raw["rewards"] = placed(raw["rewards"], place.parent)
        parent = raw.pop("extends", None)
        files.append((path, raw))
        if parent is None:
            return files
        if not isinstance(parent, str):
            raise RecipeError(f"{path}: extends: must be the name or path of one recipe")
        path = find(parent, beside=place.parent)


def of_a_run(path: Path) -> bool:
    """Whether a recipe's file is the one that a run folder keeps, by whatever name it is found."""
    return "config.yaml" in (path.name, path.resolve().name)


def placed(value: Any, folder: Path, named: bool = False) -> Any:
    """The same with the whole path in every reward `file.py:callable` of it. `named`: the value is
    a reward's own."""
    if isinstance(value, dict):
        return {
            key: inner if key == "options" else placed(inner, folder, key == "reward")
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [placed(inner, folder) for inner in value]
    file, _, attribute = value.rpartition(":") if isinstance(value, str) and named else ("", "", "")
    if not file.endswith(".py"):
        return value
    given = Path(file).expanduser()
    beside, here = folder / given, Path.cwd() / given
    return f"{here if here.is_file() and not beside.is_file() else beside}:{attribute}"
