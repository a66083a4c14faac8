"""A reward's file is looked for beside the recipe that names it, and the run keeps its place."""

import json

import pytest

from _command import marble, toy  # noqa: F401
from marble.recipe import load_recipe

REWARD = """
def shade(images, prompts, metadata):
    return (-images.float().mean((1, 2, 3))).tolist()
"""
BROKEN = """
def shade(images, prompts, metadata):
    table = {}
    return [table["a score"] for _ in prompts]
"""


@pytest.fixture
def project(tmp_path, toy):  # noqa: F811
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "shade.py").write_text(REWARD)
    (folder / "mine.yaml").write_text(
        f"extends: {toy.recipe_file}\nrewards:\n  add: {{name: shade, reward: shade.py:shade}}\n"
    )
    return folder


def test_beside_the_recipe_first_then_here(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = load_recipe(str(project / "mine.yaml")).rewards.train[-1].reward
    assert told == f"{project / 'shade.py'}:shade"
    (project / "shade.py").rename(tmp_path / "shade.py")
    told = load_recipe(str(project / "mine.yaml")).rewards.train[-1].reward
    assert told == f"{tmp_path / 'shade.py'}:shade"
    (tmp_path / "shade.py").unlink()  # nowhere: the message then names the place beside the recipe
    told = load_recipe(str(project / "mine.yaml")).rewards.train[-1].reward
    assert told == f"{project / 'shade.py'}:shade"


def test_a_recipe_that_is_extended_from_elsewhere(project, tmp_path):
    (tmp_path / "child.yaml").write_text("extends: project/mine.yaml\ntrain: {steps: 3}\n")
    told = load_recipe(str(tmp_path / "child.yaml")).rewards.train[-1].reward
    assert told == f"{project / 'shade.py'}:shade"


def test_on_the_command_line_it_is_the_current_folder(project, monkeypatch):
    monkeypatch.chdir(project)
    for override in (
        "rewards.train=[{name: shade, reward: 'shade.py:shade'}]",
        "rewards.shade.reward=shade.py:shade",
        "rewards.add={name: more, reward: 'shade.py:shade'}",
    ):
        recipe = load_recipe("mine.yaml", [override])
        assert recipe.rewards.train[-1].reward == f"{project / 'shade.py'}:shade"


def test_other_rewards_are_left_alone():
    for text in ("package.module:callable", "ocr"):
        recipe = load_recipe("studio", [f"rewards.train=[{{name: a, reward: '{text}'}}]"])
        assert recipe.rewards.train[0].reward == text


def test_a_run_is_evaluated_from_anywhere(marble, project, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    words = ["train.steps=1", "eval.at_start=false", "--out", run, "--device", "cpu"]
    result = marble("train", project / "mine.yaml", *words)
    assert result.status == 0, result.err
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    record = json.loads(marble("eval", run, "--json", "--device", "cpu").out)
    assert "shade" in record["rewards"]


def test_a_reward_that_crashes_is_told_with_file_and_line(marble, project, tmp_path):  # noqa: F811
    (project / "shade.py").write_text(BROKEN)
    result = marble("train", project / "mine.yaml", "--out", tmp_path / "run", "--device", "cpu")
    assert result.status == 2 and "Traceback" not in result.err
    assert "shade.py, line 4: KeyError: 'a score'" in result.err
    (project / "shade.py").write_text("import math\n\nSCALE = math.sqrt(-1)\n")
    result = marble("train", project / "mine.yaml", "--out", tmp_path / "other")
    assert result.status == 2 and "shade.py, line 3: ValueError" in result.err
