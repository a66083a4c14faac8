"""Files as users give them, damaged at random, and the command in this process."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from marble.cli import main

COMMON = {"deadline": None, "database": None}


def fuzz(cases: int) -> Any:
    """Settings of a fuzz test: the same cases every time."""
    return settings(max_examples=cases, derandomize=True, **COMMON)


NASTY = [
    None, True, 0, -1, 10**30, 1e308, float("inf"), float("nan"), "", "..", "../..", "\x00", "~x",
    "~nobody/x", "/", "a" * 300, ":f", "x:", "x.py:f", "os:system", [], {}, [[]], [None], [5],
    {"a": 1}, {"": None}, "0x_", "1:30", "no", "{", "\u2028", "\ud800", "é", "%s", "[bold]",
    [{"name": "a"}, {"name": "a"}], {"path": 5}, 2**63, 2**31, 0.5,
]  # fmt: skip
leaves = (
    st.sampled_from(NASTY)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers() | st.text(max_size=4), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.integers() | st.none(), max_size=3)
)


@st.composite
def mutated(draw: Any, base: Any) -> Any:
    """`base` with one to three of its values replaced, removed, or something added."""
    value = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, 3))):
        paths = list(_paths(value))
        if not paths:
            break
        where = draw(st.sampled_from(paths))
        holder = value
        for key in where[:-1]:
            holder = holder[key]
        kind = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if kind == "remove":
            del holder[where[-1]]
        elif kind == "add" and isinstance(holder, dict):
            holder[draw(st.text(max_size=6))] = copy.deepcopy(draw(leaves))
        else:
            holder[where[-1]] = copy.deepcopy(draw(leaves))
    return value


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Any:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*at, key)
        yield from _paths(inner, (*at, key))


@st.composite
def hurt(draw: Any, data: bytes) -> bytes:
    """Bytes with a piece cut out, overwritten or put in."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 40)))
    piece = draw(
        st.binary(max_size=12) | st.sampled_from([b"\xff", b"\x00", b"[" * 3000, b"9" * 5000])
    )
    return data[:start] + piece + data[end:]


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def command(*words: object) -> str:
    """Runs `marble …` here; asserts that it ended well or as a user's mistake; what it said."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["marble", *map(str, words)]
    status: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as leaving:
        status = leaving.code or 0
    finally:
        sys.argv = before
    said = err.getvalue()
    assert status in (0, 2), said
    assert "Traceback" not in said
    if status == 2:
        assert len(said.strip().splitlines()) == 1 and said.startswith("marble: "), said
    return said
