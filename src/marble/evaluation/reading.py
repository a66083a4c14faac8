"""Files of a run folder, read into shapes that can be relied on, whatever is in them.

Run folders are shared, copied half and edited by hand. What is missing or of another kind is left
out here, once, so that no reader has to ask again; what cannot be read at all is one clear line.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marble.errors import MarbleError
from marble.recipe.yamlio import read

_SCORED = ("rewards", "heldout", "geneval", "by_source")
_MOST = 2**53
"""Whole numbers up to here are exact in every format that a run is written in."""


def run_folder(given: Path | str) -> Path:
    """The folder of a run, finished or not; one that is none is told, with the one that is meant
    where a run has nearly that name or lies in `runs`."""
    try:
        path = Path(given).expanduser()
        if (path / "config.yaml").is_file():
            return path
        what = "not a run folder (it has no config.yaml)" if path.is_dir() else "no such folder"
        if path.is_file():
            what = "a file, not a run folder"
        meant = _meant(path)
    except (OSError, RuntimeError, ValueError):  # a name that no folder can have
        what, meant = "no such folder", None
    hint = f"did you mean {meant}?" if meant else "give a folder that `marble train` wrote"
    raise MarbleError(f"{given}: {what}; {hint}")


def _meant(path: Path) -> Path | None:
    for place in (path.parent, Path("runs")):
        there = place.iterdir() if place.is_dir() else ()
        runs = [folder.name for folder in there if (folder / "config.yaml").is_file()]
        near = difflib.get_close_matches(path.name, runs, n=1)
        if near:
            return place / near[0]
    return None


def parse_json(text: str) -> Any:
    """The value of a JSON text, `ValueError` for what is none. Numbers fit into 64 bits."""
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file; {} where there is none."""
    try:
        return mapping(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def read_config(path: Path) -> dict[str, Any]:
    """A run's `config.yaml`: sections are mappings, rewards lists of named mappings."""
    config = {
        key: value
        for key, value in mapping(read(path)).items()
        if isinstance(value, dict) or key in ("name", "description")
    }
    rewards = config.get("rewards")
    if rewards is not None:
        config["rewards"] = rewards | {k: entries(rewards.get(k)) for k in ("train", "heldout")}
    return config


def evaluation_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `evals.jsonl`: score → its numbers, for each part that has scores."""
    record = dict(row)
    for part in _SCORED:
        if part in record:
            record[part] = {k: v for k, v in mapping(record[part]).items() if isinstance(v, dict)}
    for part in ("rewards", "heldout"):
        for entry in record.get(part, {}).values():
            entry |= {
                key: _numeric(entry[key]) for key in ("mean", "lo", "hi", "n") if key in entry
            }
    return record


def step_of(row: Mapping[str, Any]) -> int | None:
    """The row's step, None where it has none."""
    step = row.get("step")
    return step if type(step) is int and 0 <= step < _MOST else None


def inside(folder: Path, name: Any, default: str) -> Path:
    """`folder / name` where that stays inside the folder, else the default."""
    path = Path(name) if isinstance(name, str) and "\0" not in name else Path(default)
    if path.is_absolute() or ".." in path.parts:
        path = Path(default)
    return folder / path


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[dict[str, Any]]:
    """The mappings of a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def numbers(values: Any) -> dict[str, float]:
    """Finite numbers only: an inapplicable score is absent, never 0."""
    return {
        str(name): float(value)
        for name, value in mapping(values).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def number(value: Any) -> float:
    """The value where it is a number, else NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def _numeric(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(text: str) -> int | float:
    return int(text) if len(text) < 19 else float(text)
