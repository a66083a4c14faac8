"""docs/extend.md, word for word: an objective and a rule from outside the package."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from marble.errors import MarbleError
from marble.objectives import Point, objective_class
from marble.plugins import find
from marble.recipe import load_recipe
from marble.training.run import train

ROOT = Path(__file__).parents[2]
SMALL = ["train.steps=2", "eval.at_start=false", "log.samples_every=0", "train.checkpoint_every=0"]
SMALL += ["data.prompts_per_epoch=2", "data.images_per_prompt=4", "rollout.steps=3"]
SMALL += ["eval.prompts=1", "eval.images_per_prompt=1", "rewards.heldout=[]"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The page's files as a reader would make them, in the current folder."""
    text = (ROOT / "docs" / "extend.md").read_text()
    monkeypatch.chdir(tmp_path)
    for body in re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL):
        Path(body.split("\n")[0].removeprefix("# ")).write_text(body)
    return tmp_path


def run(toy, name, *overrides):
    """The page's recipe, on the toy's model and prompts."""
    recipe = load_recipe(name, [*toy.overrides(), *SMALL, *overrides])
    train(recipe, Path("run"), device="cpu", console=Console(quiet=True))
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and not any(row["skipped"] for row in rows)
    return recipe, rows


@pytest.mark.parametrize("method", ["progress", "marble"])
def test_an_objective_from_outside(toy, files, method):
    more = [f"balance.method={method}", "balance.every=1", "log.harmony_every=1"]
    recipe, rows = run(toy, "ranked.yaml", *more)
    assert recipe.objective.margin == 0.8
    assert all(row["grad_norm/red"] > 0 and row["grad_norm/dark"] > 0 for row in rows)
    again = load_recipe("run/config.yaml")
    assert again.objective.margin == 0.8 and again == recipe
    # What is trained on is the file's own loss.
    objective = objective_class("ranked.py:Ranked")(margin=0.8)
    v, noise, x_0 = torch.randn(3, 4, 2, dtype=torch.float64)
    point = Point(x_0, torch.ones(4), x_0, noise)
    plus, minus = objective.sides(v, point)
    P, N = objective.cotangents(v, point)
    torch.testing.assert_close(P, v - (noise - x_0))
    torch.testing.assert_close(N, -P * (plus < 0.8)[:, None])
    assert ((plus + minus) >= 0.8 - 1e-12).all()


def test_a_rule_from_outside(toy, files):
    recipe, rows = run(toy, "shy.yaml", "balance.every=1")
    assert recipe.balance.rule_options == {"power": 2.0} and recipe.balance.uses_gram
    row, names = rows[0], ["red", "blue", "dark"]
    cos = np.eye(3)
    for a in range(3):
        for b in range(a + 1, 3):
            cos[a, b] = cos[b, a] = row[f"cos/{names[a]}|{names[b]}"]
    mean = cos.sum(1) / 3 / np.sqrt(cos.sum() / 9)
    weight = np.clip(0.5 + 0.5 * mean, 0.01, 1) ** 2.0
    found = [row[f"alpha_raw/{name}"] for name in names]
    np.testing.assert_allclose(found, weight / weight.sum(), rtol=1e-9)


def test_what_is_wrong_with_a_plug_in_is_told_in_a_line(files):
    Path("broken.py").write_text("1 / 0\n")
    Path("other.py").write_text("class Other: pass\n")
    for words, said in (
        (["objective.name=ranked.py:Rankd"], "objective.name: .*did you mean Ranked"),
        (["objective.name=missing.py:X"], "missing.py does not exist"),
        (["objective.name=broken.py:X"], "ZeroDivisionError"),
        (["objective.name=other.py:Other"], "is no Objective; subclass"),
        (["objective.name=no_such_package:X"], "cannot import no_such_package"),
        (["balance.method=shy.py:Shy", "balance.options={powr: 1}"], "Did you mean 'power'"),
        (["objective.name=ranked.py:Ranked", "objective.margn=1"], "did you mean objective.margin"),
        (["objective.name=ranked.py:Ranked", "balance.target=reward"], "balance.target: reward"),
    ):
        with pytest.raises(MarbleError, match=said) as error:
            load_recipe("studio", words)
        assert "\n" not in str(error.value)


def test_entry_points_are_found_by_name(files, monkeypatch):
    monkeypatch.syspath_prepend(str(files))
    info = files / "shy_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shy-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[marble.rules]\nshy = shy:Shy\n")
    sys.modules.pop("shy", None)
    recipe = load_recipe("studio", ["balance.method=shy", "balance.options={power: 3}"])
    assert recipe.balance.rule.__name__ == "Shy"
    with pytest.raises(MarbleError, match=r"known: .*shy"):
        find("rule", "zzz", {}, object)
    sys.modules.pop("shy", None)
