"""What the verbs print, and that stdout is clean enough for a program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

VERBS = ("train", "eval", "compare", "report", "sample", "recipes", "doctor")


def test_no_arguments_shows_the_verbs(marble):
    result = marble()
    for verb in (*VERBS, "bench"):
        assert verb in result.out
    assert "Traceback" not in result.err


@pytest.mark.parametrize("words", [*((verb,) for verb in VERBS), ("bench", "train")])
def test_help_has_examples(marble, words):
    result = marble(*words, "--help")
    assert result.status == 0
    assert "Example" in result.out and f"marble {words[0]}" in result.out


def test_train_says_where_everything_lies(marble, toy, tmp_path):
    out = tmp_path / "run"
    result = marble("train", toy.recipe_file, "train.steps=1", "--out", out, "--device", "cpu")
    assert result.status == 0, result.err
    assert result.out == ""
    assert str(out / "checkpoints" / "step-000001" / "lora") in result.err.replace("\n", "")
    assert "base" in result.err and "trained" in result.err
    for name in ("red", "blue", "dark"):
        assert name in result.err
    for file in ("config.yaml", "environment.json", "metrics.jsonl", "evals.jsonl", "run.json"):
        assert (out / file).is_file()
    assert list((out / "tensorboard").iterdir())
    assert "\x1b" not in result.err  # no terminal, no colours


def test_eval_prints_a_table_or_one_object(marble, trained, tmp_path):
    table = marble("eval", trained, "--device", "cpu", "--out", tmp_path / "pictures")
    assert table.status == 0 and "red" in table.out and "95 % interval" in table.out
    index = json.loads((tmp_path / "pictures" / "index.json").read_text())
    result = marble("eval", trained, "--json", "--device", "cpu")
    record = json.loads(result.out)
    assert set(record["rewards"]) == {"red", "blue", "dark"}
    scores = [entry["scores"]["dark"] for entry in index["samples"]]
    assert record["rewards"]["dark"]["mean"] == pytest.approx(np.mean(scores))
    logged = [json.loads(line) for line in (trained / "evals.jsonl").read_text().splitlines()]
    assert record["rewards"]["dark"]["mean"] == pytest.approx(logged[-1]["rewards"]["dark"]["mean"])
    assert "general" not in record["by_source"] or "blue" not in record["by_source"]["general"]


def test_eval_of_base_and_of_a_lora_folder(marble, toy, trained):
    logged = [json.loads(line) for line in (trained / "evals.jsonl").read_text().splitlines()]
    base = json.loads(marble("eval", "base", "--recipe", toy.recipe_file, "--json").out)
    assert base["rewards"]["red"]["mean"] == pytest.approx(logged[0]["rewards"]["red"]["mean"])
    lora = next(trained.glob("checkpoints/step-*/lora"))
    file = lora / "pytorch_lora_weights.safetensors"
    # Inside a run, the recipe is the run's.
    for words in ((lora,), (lora.parent,), (file, "--recipe", toy.recipe_file)):
        record = json.loads(marble("eval", *words, "--json").out)
        mean = record["rewards"]["red"]["mean"]
        assert mean == pytest.approx(logged[-1]["rewards"]["red"]["mean"], abs=1e-6)
        assert record["step"] == (None if file in words else logged[-1]["step"])


def test_sample_draws_and_repeats(marble, trained, tmp_path):
    words = ("a cat", "two green birds", "-n", "2", "--scale", "3", "--json", "--out")
    files = []
    for name in ("a", "b"):
        result = marble("sample", trained, *words, tmp_path / name)
        record = json.loads(result.out)
        files.append([Path(f) for f in record["files"]])
    assert len(files[0]) == 4
    assert Image.open(files[0][0]).size == (48, 48)
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()
    lines = marble("sample", trained, "a cat", "--out", tmp_path / "c").out.splitlines()
    assert lines == [str(tmp_path / "c" / "000.png")]


def test_compare_prints_one_table(marble, trained):
    result = marble("compare", trained)
    assert result.status == 0
    for word in ("first", "base", "mean gain", "conflict", "minutes"):
        assert word in result.out
    assert "tie" not in result.out  # one run is ahead of nobody
    record = json.loads(marble("compare", trained, "--json").out)
    assert [row["name"] for row in record["rows"]] == ["base", "first"]


def test_recipes_list_show_and_explain(marble):
    assert "studio-fast" in marble("recipes").out
    assert "steps: 10\n" in marble("recipes", "studio", "train.steps=10").out
    shown = json.loads(marble("recipes", "studio-uniform", "--json").out)
    assert shown["balance"]["method"] == "uniform"
    assert "studio" in json.loads(marble("recipes", "--json").out)["recipes"]


NOISY = """
import os, sys
print("a reward greets on stdout as it loads")
def red(images, prompts, metadata):
    print("scoring", len(prompts))
    os.write(1, b"and from below Python\\n")
    return images[:, 0].float().mean((1, 2)).tolist()
"""


def test_json_is_alone_on_stdout_even_when_rewards_talk(toy, tmp_path):
    """The installed command, in a process of its own."""
    (tmp_path / "noisy.py").write_text(NOISY)
    override = f"rewards.train=[{{name: red, reward: '{tmp_path / 'noisy.py'}:red'}}]"
    command = [sys.executable, "-m", "marble", "eval", "base", "--recipe", str(toy.recipe_file)]
    done = subprocess.run(
        [*command, override, "--json", "--device", "cpu"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "info"},
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["rewards"]) == {"red"}
    assert "a reward greets" in done.stderr and "from below Python" in done.stderr
