"""Options that name rewards, checked and turned into vectors."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from marble.errors import MarbleError

from ._linalg import Array


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' or the list of what there is, to end an error message with."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(names)
    if isinstance(names, str) or not chosen:
        raise MarbleError("names must list at least one reward.")
    repeated = sorted({name for name in chosen if chosen.count(name) > 1})
    if repeated:
        raise MarbleError(f"Reward names must differ; {', '.join(repeated)} occurs twice.")
    return chosen


def priorities_K(priorities: Mapping[str, float] | None, names: Sequence[str]) -> Array:
    """π_k > 0, 1 where not given."""
    return _vector("priorities", priorities, names, 1.0, lambda v: v > 0.0, "a number above 0")


def floors_K(floors: Mapping[str, float] | None, names: Sequence[str]) -> Array:
    """The least cosine the direction may have with reward k; NaN where there is no floor."""
    return _vector(
        "floors", floors, names, math.nan, lambda v: 0.0 <= v < 1.0, "a cosine in [0, 1)"
    )


def groups_K(groups: Mapping[str, Sequence[str]] | None, names: Sequence[str]) -> Array | None:
    """A group number per reward, or None without groups; a reward in no group is its own."""
    if not groups:
        return None
    index = {name: k for k, name in enumerate(names)}
    group_K = np.full(len(names), -1)
    for number, (label, members) in enumerate(groups.items()):
        if isinstance(members, str) or not members:
            raise MarbleError(f"groups[{label!r}] must list reward names.")
        for name in members:
            k = _position("groups", name, index)
            if group_K[k] >= 0:
                raise MarbleError(f"Reward {name!r} is listed twice in groups; keep one.")
            group_K[k] = number
    alone = group_K < 0
    group_K[alone] = len(groups) + np.arange(alone.sum())
    return group_K


def named_options(options: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Any]:
    """A rule's options, with every mapping reward → value turned into a list in reward order.

    Such a mapping must name every reward: a weight or a range has no neutral default.
    """
    index = {name: k for k, name in enumerate(names)}
    listed: dict[str, Any] = {}
    for option, value in (options or {}).items():
        if isinstance(value, Mapping):
            for name in value:
                _position(option, name, index)
            missing = [name for name in names if name not in value]
            if missing:
                raise MarbleError(f"{option}: no value for {', '.join(missing)}.")
            value = [value[name] for name in names]
        listed[option] = value
    return listed


def _position(option: str, name: str, index: Mapping[str, int]) -> int:
    if name not in index:
        raise MarbleError(f"{option}: there is no reward {name!r}. {nearest(name, index)}")
    return index[name]


def _vector(
    option: str,
    values: Mapping[str, float] | None,
    names: Sequence[str],
    default: float,
    allowed: Callable[[float], bool],
    wanted: str,
) -> Array:
    index = {name: k for k, name in enumerate(names)}
    vector = np.full(len(names), default, dtype=np.float64)
    for name, value in (values or {}).items():
        k = _position(option, name, index)
        number = float(value) if isinstance(value, int | float) else math.nan
        if not math.isfinite(number) or not allowed(number):
            raise MarbleError(f"{option}[{name!r}] = {value!r}: give {wanted}.")
        vector[k] = number
    return vector
