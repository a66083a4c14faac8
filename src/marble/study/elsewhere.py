"""Runs of a study that were made elsewhere: their numbers travel, run folders need not.

`runs.json` in a study's folder holds what was measured of each finished run. Given to the same
study on another machine (`marble study FILE --with runs.json`), these runs count as done. They must
have been made with the settings that the study gives them there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.study.measure import Measured
from marble.study.plan import Cell, Study

FILE = "runs.json"


class Found(NamedTuple):
    """A finished run: what was measured of it, and what it was made on."""

    measured: Measured
    device: str


Runs = Mapping[Cell, Found]


def store(study: Study, runs: Runs, path: Path) -> Path:
    """Writes the runs, all digits of them, and the recipe that the study's cells change."""
    data = {
        "study": study.name,
        "judge": list(study.judge),
        "recipe": _recipe(study),
        "runs": {
            cell.folder: {
                "overrides": list(cell.overrides),
                "device": device,
                **_without_nan(asdict(measured)),
            }
            for cell, (measured, device) in runs.items()
        },
    }
    path.write_text(json.dumps(data, ensure_ascii=False) + "\n")
    return path


def load(studies: Iterable[Study], paths: Iterable[Path]) -> dict[str, dict[Cell, Found]]:
    """Study → its runs in these files; raises for those of other studies or other settings."""
    known = {study.name: study for study in studies}
    found: dict[str, dict[Cell, Found]] = {name: {} for name in known}
    for path in paths:
        data = _read(path)
        study = known.get(data["study"])
        if study is None:
            raise MarbleError(f"{path}: has runs of {data['study']}, not of {', '.join(known)}")
        changed = _changed(study, data, path)
        cells = {cell.folder: cell for cell in study.cells}
        for folder, run in data["runs"].items():
            cell = cells.get(folder)
            if cell is None:  # the study has fewer cells now
                continue
            overrides, measured = _run(run, folder, path)
            if sorted(overrides) != sorted(cell.overrides):
                raise MarbleError(
                    f"{path}: {folder} was run with other settings than {study.name} now has for "
                    "it; take it out of the file, or leave the file out"
                )
            _refuse_other_recipe(changed, overrides, path)
            found[study.name][cell] = measured
    return found


def _run(run: Any, folder: str, path: Path) -> tuple[list[str], Found]:
    """A run's overrides, and what was measured of it."""
    try:
        return list(run["overrides"]), Found(_measured(run), str(run["device"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise MarbleError(f"{path}: {folder} is damaged; take it out of the file") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
        if not isinstance(data["runs"], dict) or not isinstance(data["recipe"], dict):
            raise TypeError
        return dict(data)
    except OSError as error:
        raise MarbleError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise MarbleError(
            f"{path}: not the {FILE} that `marble study` writes into a study's folder"
        ) from None


def _changed(study: Study, data: Mapping[str, Any], path: Path) -> dict[str, tuple[Any, Any]]:
    """Setting → what the study's recipe said of it then, and says now, where that differs."""
    if data["judge"] != list(study.judge):
        raise MarbleError(f"{path}: its runs were judged by other rewards than {study.name} has")
    now = _recipe(study)
    # A setting that was added since has its default, which changes nothing.
    return {
        key: (then, now[key])
        for key, then in data["recipe"].items()
        if key in now and now[key] != then
    }


def _refuse_other_recipe(
    changed: Mapping[str, tuple[Any, Any]], overrides: Iterable[str], path: Path
) -> None:
    """What a run sets itself, the recipe does not decide."""
    own = [word.partition("=")[0] for word in overrides]
    for key, (then, now) in changed.items():
        if not any(key == name or key.startswith(f"{name}.") for name in own):
            raise MarbleError(
                f"{path}: its runs had {key}={then}, the study's recipe has {now} now; leave the "
                "file out"
            )


def _recipe(study: Study) -> dict[str, Any]:
    """Setting → value, of the recipe before a cell changes it."""
    found: dict[str, Any] = {}

    def walk(value: Any, at: str) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(inner, f"{at}.{key}" if at else str(key))
        else:
            found[at] = value

    dumped = load_recipe(study.recipe).model_dump(mode="json")
    walk({k: v for k, v in dumped.items() if k not in ("name", "description")}, "")
    return found


def _measured(run: Mapping[str, Any]) -> Measured:
    def numbers(part: Mapping[str, float | None]) -> dict[str, float]:
        return {name: math.nan if x is None else x for name, x in part.items()}

    return Measured(
        scores=numbers(run["scores"]),
        base=numbers(run["base"]),
        gains=numbers(run["gains"]),
        weights=numbers(run["weights"]),
        values=numbers(run["values"]),
        curve={int(step): (worst, mean) for step, (worst, mean) in run["curve"].items()},
        trained=list(run["trained"]),
        heldout=list(run["heldout"]),
        judged=list(run["judged"]),
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
