"""Every file that a user can give, damaged in thousands of ways: never a traceback.

Fast: 2,000 cases in all. The slow tests are the same with ten times as many.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from _fuzz import command, fuzz, hurt, leaves, mutated, to_json
from hypothesis import given
from hypothesis import strategies as st

from marble.data import load_prompts
from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.recipe.explain import known_paths
from marble.recipe.load import recipe_from

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from _runs import Spec, make_run

RECIPE = {
    "name": "x",
    **load_recipe("studio").model_dump(mode="json", exclude_defaults=True),
}
STUDY = {
    "description": "x",
    "recipe": "studio",
    "seeds": [0, 1],
    "common": {"train.steps": 4},
    "settings": {"few": {"optim.lr": 1e-3}, "many": {}},
    "cells": {"a": {"balance.method": "uniform"}, "b": None},
    "judge": ["ocr"],
    "show": ["a"],
    "without": {"few": ["b"]},
    "fewer": {"many": [0]},
}
PROMPT = {"prompt": "a photo of two cats", "source": "x", "include": [{"class": "cat", "count": 2}]}
SNIPPETS = [
    "!!int x", "!!python/name:os.system", "0x_", "9" * 5000, "[" * 5000, "{a: " * 200, "&a [*a]",
    "*a", "? [a]", "- -", "'", '"\\ud800"', '"\\0"', "!!set {a}", "!!binary x", "%", "@", "`", ": ",
    "\t", "---\n---\n", "<<: 1", "{<<: [1]}", "!", "!!", "|", ">", "2001-12-14", "~", "\x1b[31m",
]  # fmt: skip
texts = st.text(max_size=40) | st.sampled_from(SNIPPETS) | leaves.map(lambda v: yaml.dump(v))
keys = st.sampled_from([*known_paths(), "rewards.ocr.weight", "rewards.add", "rewards.drop"])
keys = (
    keys | st.text(max_size=10) | st.sampled_from(["a." * 50 + "b", "balance.stages.0", "train.²"])
)


@pytest.fixture(scope="module")
def place(tmp_path_factory, monkeymodule):
    folder = tmp_path_factory.mktemp("fuzz")
    monkeymodule.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def monkeymodule():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def both(fast, slow):
    """Runs a test with few cases, and as a slow test with many."""
    return pytest.mark.parametrize(
        "cases", [fast, pytest.param(slow, marks=pytest.mark.slow)], ids=["fast", "slow"]
    )


@both(150, 1500)
def test_recipes(place, cases):
    structured = mutated(RECIPE).map(
        lambda v: yaml.dump(v, allow_unicode=True).encode("utf-8", "surrogatepass")
    )
    text = yaml.safe_dump(RECIPE, sort_keys=False).encode()

    @fuzz(cases)
    @given(
        structured
        | hurt(text)
        | st.binary(max_size=60)
        | texts.map(lambda t: t.encode("utf-8", "replace"))
    )
    def check(data):
        path = place / "mine.yaml"
        path.write_bytes(data)
        command("recipes", path)

    check()


@both(950, 9000)
def test_overrides(place, cases):
    """Onto the recipe's data: reading the file each time would take the most of the time."""

    @fuzz(cases)
    @given(keys, texts)
    def check(key, value):
        with suppress(MarbleError):
            recipe_from(RECIPE, [f"{key}={value}"])

    check()


@pytest.mark.slow
def test_overrides_on_the_command_line(place):
    @fuzz(2000)
    @given(keys, texts)
    def check(key, value):
        # The terminal can give no NUL, and no half of a character but as an escape.
        word = f"{key}={value}".replace("\0", "").encode("utf-8", "replace").decode()
        command("recipes", "studio", "--", word)

    check()


@both(100, 1000)
def test_studies(place, cases):
    text = yaml.safe_dump(STUDY).encode()

    @fuzz(cases)
    @given(
        mutated(STUDY).map(
            lambda v: yaml.dump(v, allow_unicode=True).encode("utf-8", "surrogatepass")
        )
        | hurt(text)
        | st.binary(max_size=60)
    )
    def check(data):
        path = place / "study.yaml"
        path.write_bytes(data)
        command("study", path, "--no-run", "--no-page", "--out", place / "none")

    check()


@both(740, 7000)
def test_prompts(place, cases):
    line = json.dumps(PROMPT).encode()

    @fuzz(cases)
    @given(
        st.sampled_from(["jsonl", "txt"]),
        mutated(PROMPT).map(to_json)
        | hurt(line)
        | hurt(line + b"\n" + line)
        | st.binary(max_size=60),
    )
    def check(kind, data):
        path = place / f"prompts.{kind}"
        path.write_bytes(data)
        try:
            found = load_prompts(str(path))
        except MarbleError as error:
            assert str(path) in str(error)
            return
        for prompt in found:
            prompt.text.encode()
            json.dumps(prompt.metadata, ensure_ascii=False).encode()

    check()


@pytest.fixture(scope="module")
def run(place):
    spec = Spec(steps=4, eval_every=2, prompts=3, size=16, rewards=("ocr", "clip"))
    return make_run(place / "runs" / "small", spec)


def _damaged(path):
    """What a file of a run may become."""
    data = path.read_bytes()
    kinds = hurt(data) | st.sampled_from([b"", b"5", b"[]", b"null", b"{}", b"\xff", b"[" * 5000])
    if path.suffix == ".json":
        kinds |= mutated(json.loads(data)).map(to_json)
    elif path.suffix == ".jsonl":
        lines = [json.loads(line) for line in data.splitlines()]
        kinds |= mutated(lines).map(lambda rows: b"".join(to_json(r) + b"\n" for r in rows))
    elif path.suffix == ".yaml":
        kinds |= mutated(yaml.safe_load(data)).map(lambda v: yaml.dump(v).encode())
    return kinds


@both(60, 600)
def test_run_folders(place, run, cases):
    """Through compare, and every eighth through the page, which takes longer."""
    names = ["config.yaml", "run.json", "metrics.jsonl", "evals.jsonl"]
    names += ["evals/step-000004/index.json", "evals/step-000000/index.json"]
    names += [str(p.relative_to(run)) for p in run.glob("advantages/*.json")][:1]
    whole = {name: (run / name).read_bytes() for name in names}
    count = 0

    @fuzz(cases)
    @given(st.data())
    def check(data):
        nonlocal count
        count += 1
        name = data.draw(st.sampled_from(names))
        (run / name).write_bytes(data.draw(_damaged(run / name)))
        try:
            command("compare", run, "--json")
            command("recipes", run)
            if count % 8 == 0:
                command("report", run, "-o", place / "page.html")
        finally:
            (run / name).write_bytes(whole[name])

    check()
