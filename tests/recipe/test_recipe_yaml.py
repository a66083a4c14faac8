"""Scalars as YAML 1.2's core schema has them, and values that come back as they were."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.errors import RecipeError
from marble.recipe import load_recipe
from marble.recipe.yamlio import dump, parse

CORE = [
    ("010", 10), ("-007", -7), ("+3", 3), ("0o17", 15), ("0x1F", 31), ("0", 0),
    ("1:30", "1:30"), ("190:20:30", "190:20:30"), ("1:30.5", "1:30.5"),
    ("0b11", "0b11"), ("1_000", "1_000"), ("0x_", "0x_"), ("0o8", "0o8"), ("-0x1", "-0x1"),
    ("3e-4", 3e-4), ("1.", 1.0), (".5", 0.5), ("1_0.5", "1_0.5"), (".inf", float("inf")),
    ("no", "no"), ("yes", "yes"), ("on", "on"), ("y", "y"), ("true", True), ("FALSE", False),
    ("null", None), ("~", None), ("", None), ("2001-12-14", "2001-12-14"), ("=", "="),
    ("!!str 010", "010"), ("!!float 3", 3.0), ("!!int 0o7", 7),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), CORE)
def test_scalars(text, value):
    found = parse(f"a: {text}", "here")["a"]
    assert found == value and type(found) is type(value)


def test_overrides_follow_the_same_rules():
    assert load_recipe("studio", ["train.steps=010"]).train.steps == 10
    with pytest.raises(RecipeError, match="'1:30'"):
        load_recipe("studio", ["train.steps=1:30"])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
    | st.sampled_from([text for text, _ in CORE if "!!" not in text]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "010", "no", "1e3", "0o7"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(values)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_what_is_written_is_read_back(value):
    """Text that looks like a number in either version stays text."""
    assert parse(dump(value), "here") == value
    flow = dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    assert parse(flow, "here") == value


def test_merge_keys_and_anchors_still_work():
    text = "base: &b {x: 1, y: 2}\nmine: {<<: *b, y: 3}\nlist: [*b, *b]"
    assert parse(text, "here") == yaml.safe_load(text)
