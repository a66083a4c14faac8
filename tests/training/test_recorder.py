"""What a run writes about its evaluations."""

import io
import json
import re

import pytest
import yaml
from rich.console import Console

from marble.errors import RewardError
from marble.recipe import load_recipe
from marble.training import recorder
from marble.training.run import train


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_that_is_evaluated_says_how_long_it_took(toy, tmp_path):
    recipe = toy.recipe("train.steps=6", "train.steps_per_epoch=2", "eval.every=4")
    train(recipe, tmp_path / "run", device="cpu", console=Console(quiet=True))
    rows = lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    times = {row["step"]: row["time/eval"] for row in rows if "time/eval" in row}
    evals = lines(tmp_path / "run" / "evals.jsonl")
    assert times == {e["step"]: e["seconds"] for e in evals if e["policy"] == "trained"}
    assert list(times) == [4, 6] and min(times.values()) > 0


def test_steps_are_logged_even_where_their_evaluation_fails(toy, tmp_path, monkeypatch):
    honest = recorder.evaluate_policy

    def failing(*args, policy, **options):
        if policy == "default":
            raise RewardError("the reward is out of order")
        return honest(*args, policy=policy, **options)

    monkeypatch.setattr(recorder, "evaluate_policy", failing)
    recipe = toy.recipe("train.steps=3", "eval.every=2")
    with pytest.raises(RewardError, match="out of order"):
        train(recipe, tmp_path / "run", device="cpu", console=Console(quiet=True))
    assert [row["step"] for row in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2]


def test_a_reward_that_applies_to_no_prompt(toy, tmp_path):
    """It has no score anywhere, which is neither 0 nor a reason to stop."""
    settings = yaml.safe_load(toy.recipe_file.read_text())
    del settings["data"]["sources"]["ocr"]  # the only source of which `blue` has something to say
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    said = io.StringIO()
    recipe = load_recipe(str(tmp_path / "mine.yaml"))
    outcome = train(recipe, tmp_path / "run", device="cpu", console=Console(file=said, width=200))
    assert outcome.finished
    assert re.search(r"^held-out, trained, step 2: red 0\.\d+  blue –  dark", said.getvalue(), re.M)
    record = lines(tmp_path / "run" / "evals.jsonl")[-1]["rewards"]["blue"]
    assert record["mean"] is None and record["n"] == 0
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["reward/blue/applicable"] == 0
