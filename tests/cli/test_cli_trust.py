"""Somebody else's run folder: its code runs only where it is asked for, and names stay inside."""

import json
import shutil

import pytest
import yaml

from marble.errors import MarbleError
from marble.models.folder import pipeline_index
from marble.recipe import load_recipe

EVIL = """
import pathlib
pathlib.Path({mark!r}).write_text("ran")


def red(images, prompts, metadata):
    return images[:, 0].float().mean((1, 2)).div(255).tolist()
"""


@pytest.fixture
def theirs(toy, trained, tmp_path, monkeypatch):
    """A run folder with code of somebody else, and the file that appears when it has run."""
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran.txt"
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    run = shutil.copytree(trained, tmp_path / "theirs")
    text = (run / "config.yaml").read_text()
    changed = text.replace(f"{toy.rewards_file}:red", f"{tmp_path}/evil.py:red")
    assert changed != text
    (run / "config.yaml").write_text(changed)
    (tmp_path / "child.yaml").write_text("extends: theirs\nname: mine\n")
    (tmp_path / "grandchild.yaml").write_text("extends: child.yaml\n")
    (tmp_path / "linked.yaml").symlink_to(run / "config.yaml")
    return run, mark


VERBS = [
    ("eval", "RUN"),
    ("eval", "base", "--recipe", "RUN"),
    ("geometry", "RUN"),
    ("geometry", "RUN", "--base"),
    ("train", "--resume", "RUN", "train.steps=3"),
    ("train", "RUN", "train.steps=1", "--out", "new"),
    ("train", "RUN/config.yaml", "train.steps=1", "--out", "new"),
    ("bench", "train", "RUN"),
    ("bench", "checkpoint", "RUN"),
    ("bench", "loop", "RUN"),
    ("bench", "options", "RUN"),
    ("eval", "base", "--recipe", "child.yaml"),
    ("train", "child.yaml", "train.steps=1", "--out", "new"),
    ("train", "grandchild.yaml", "train.steps=1", "--out", "new"),
    ("bench", "checkpoint", "linked.yaml"),
]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_code_of_a_run_folder_asks_first(marble, theirs, words):
    run, mark = theirs
    result = marble(*(word.replace("RUN", str(run)) for word in words))
    assert result.status == 2 and not mark.exists()
    (line,) = result.err.strip().splitlines()
    assert "evil.py:red" in line and "--trust" in line


def test_trust_runs_it(marble, theirs):
    run, mark = theirs
    assert marble("eval", run, "--trust", "--json").status == 0
    assert mark.exists()
    mark.unlink()
    assert marble("eval", run).status == 2  # for that command only
    assert not mark.exists()


@pytest.mark.parametrize("where", ["", "./"])
def test_code_typed_by_hand_is_asked_for(marble, theirs, tmp_path, where):
    run, mark = theirs
    where = where or f"{tmp_path}/"
    assert marble("eval", run, f"rewards.red.reward={where}evil.py:red").status == 0
    assert mark.exists()


def test_code_that_one_s_own_recipe_names_is_asked_for(marble, theirs, toy, tmp_path):
    """Above the run folder that it extends; what else that one names still is not."""
    run, mark = theirs
    text = (run / "config.yaml").read_text()
    dark = f"{toy.rewards_file}:dark"
    (tmp_path / "own.yaml").write_text(
        "extends: theirs\nrewards:\n  drop: [red]\n"
        f"  add: [{{name: mine, reward: '{tmp_path}/evil.py:red'}}]\n"
    )
    assert marble("eval", "base", "--recipe", "own.yaml").status == 0
    assert mark.exists() and dark in text
    (tmp_path / "other.py").write_text(EVIL.format(mark=str(tmp_path / "other.txt")))
    (run / "config.yaml").write_text(text.replace(dark, f"{tmp_path}/other.py:red"))
    result = marble("eval", "base", "--recipe", "own.yaml")
    assert "other.py:red" in result.err and f"extends {tmp_path}/theirs" in result.err
    assert result.status == 2 and not (tmp_path / "other.txt").exists()


def test_what_this_account_trained_with_runs_unasked(marble, theirs, toy, tmp_path):
    """One's own run is evaluated and resumed as ever; with other options it is another thing."""
    _, mark = theirs
    mine = f"rewards.red.reward={tmp_path}/evil.py:red"
    words = ("train", toy.recipe_file, mine, "train.steps=1", "--out", tmp_path / "own")
    assert marble(*words).status == 0
    mark.unlink()
    assert marble("eval", tmp_path / "own").status == 0
    assert marble("train", "--resume", tmp_path / "own", "train.steps=2").status == 0
    assert mark.exists()
    text = (tmp_path / "own" / "config.yaml").read_text()
    changed = text.replace("    options: {}", "    options: {size: 9}", 1)
    assert changed != text
    (tmp_path / "own" / "config.yaml").write_text(changed)
    assert "--trust" in marble("eval", tmp_path / "own").err


def test_doctor_runs_nothing(marble, theirs, tmp_path):
    run, mark = theirs
    result = marble("doctor", run, "--json")
    checks = {check["what"]: check for check in json.loads(result.out)["checks"]}
    assert checks["reward red"]["ok"] and "nothing of it was run" in checks["reward red"]["found"]
    missing = marble("doctor", run, f"rewards.red.reward={tmp_path}/evil.py:rde", "--json")
    checks = {check["what"]: check for check in json.loads(missing.out)["checks"]}
    assert "did you mean red?" in checks["reward red"]["remedy"]
    package = tmp_path / "sneaky"
    package.mkdir()
    (package / "__init__.py").write_text(EVIL.format(mark=str(mark)))
    (package / "inner.py").write_text("from elsewhere import *\n")
    for reward in ("sneaky:red", "sneaky.inner:anything"):
        marble("doctor", run, f"rewards.red.reward={reward}")
    assert not mark.exists()


def test_sample_compare_report_and_recipes_run_nothing(marble, theirs, tmp_path):
    run, mark = theirs
    assert marble("sample", run, "a cat", "-o", tmp_path / "out").status == 0
    assert marble("compare", run).status == 0
    assert marble("report", run).status == 0
    assert marble("recipes", run).status == 0
    assert not mark.exists()


@pytest.mark.parametrize("section", [("objective", "name"), ("balance", "method")], ids="-".join)
@pytest.mark.parametrize(
    "words",
    [
        ("recipes", "RUN"),
        ("doctor", "RUN"),
        ("eval", "RUN"),
        ("sample", "RUN", "a cat"),
        ("geometry", "RUN"),
        ("train", "--resume", "RUN"),
        ("train", "RUN"),
        ("train", "child.yaml"),
        ("recipes", "child.yaml"),
        ("bench", "checkpoint", "RUN"),
    ],
    ids=" ".join,
)
def test_objectives_and_rules_of_a_run_folder_ask_before_they_are_read(
    marble, trained, tmp_path, monkeypatch, words, section
):
    """They are imported to check the recipe: every verb that reads one would run them."""
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(trained, tmp_path / "theirs")
    mark = tmp_path / "ran.txt"
    (tmp_path / "plug.py").write_text(EVIL.format(mark=str(mark)))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config[section[0]][section[1]] = f"{tmp_path}/plug.py:Thing"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "child.yaml").write_text("extends: theirs\n")
    result = marble(*(word.replace("RUN", str(run)) for word in words))
    assert result.status == 2 and not mark.exists()
    assert "plug.py:Thing" in result.err and "--trust" in result.err
    assert len(result.err.strip().splitlines()) == 1
    if words[0] == "eval":  # with it, the file runs (and holds no such class)
        assert "has no 'Thing'" in marble("eval", run, "--trust").err
        assert mark.exists()


OBJECTIVE = """
from marble.objectives.nft import NFT


class Mine(NFT):
    pass
"""


SLOW = [pytest.param(verb, marks=pytest.mark.slow) for verb in ("train", "loop", "options")]


@pytest.mark.parametrize("verb", ["checkpoint", *SLOW])
def test_bench_with_trust_runs_a_plug_in(marble, trained, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(trained, tmp_path / "theirs")
    (tmp_path / "plug.py").write_text(OBJECTIVE)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["objective"]["name"] = f"{tmp_path}/plug.py:Mine"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    rounds = "--repeats" if verb in ("loop", "options") else "--rounds"
    words = ("bench", verb, run, rounds, "1", "--device", "cpu", "--json")
    assert "--trust" in marble(*words).err
    assert marble(*words, "--trust").status == 0


@pytest.mark.parametrize(
    "entry",
    [["os", "system"], ["mine", "Model"], ["diffusers.utils", "x"], ["diffusers", "a.b"], ["x"]],
)
def test_a_model_folder_names_known_classes_only(toy, tmp_path, entry):
    folder = shutil.copytree(toy.folder / "model", tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text())
    pipeline_index(folder)
    index["tokenizer"] = entry
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(MarbleError, match="could run code"):
        pipeline_index(folder)


@pytest.mark.parametrize("name", ["../../up", "/etc", "..", ".hidden", "a/b", "a\\b", "a\nb"])
def test_names_stay_inside_runs(name):
    with pytest.raises(MarbleError, match="name"):
        load_recipe("studio", [f"name={json.dumps(name)}"])


def test_a_report_shows_no_pictures_from_outside_the_run(marble, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    secret = shutil.copytree(run / "evals" / "step-000000", tmp_path / "secret")
    index = json.loads((secret / "index.json").read_text())
    for sample in index["samples"]:
        sample["prompt"] = "a secret prompt"
    (secret / "index.json").write_text(json.dumps(index))
    rows = [json.loads(line) for line in (run / "evals.jsonl").read_text().splitlines()]
    for row in rows:
        row["folder"] = "../secret"
    (run / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert marble("report", run).status == 0
    assert "a secret prompt" not in (run / "report.html").read_text()
