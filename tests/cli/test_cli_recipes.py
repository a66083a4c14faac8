"""`marble recipes`, `--version`, completion, and what a misspelt name is answered with."""

import json
import os
import subprocess
import sys

import pytest

import marble as package
from marble.recipe import list_recipes, load_recipe, reference


def test_fields_is_a_table_of_every_field(marble):
    """Piped: one line per field, with its path, its default and its meaning."""
    lines = marble("recipes", "--fields").out.splitlines()
    docs = [d for d in reference() if not d.path.startswith("rewards.heldout.*.")]
    rows = [line for line in lines if line.startswith("  ")]
    for row, doc in zip(rows, docs, strict=True):
        assert row.startswith(f"  {doc.path} ")
        assert doc.description in row and not row.endswith(" ")
    rho = next(row for row in rows if row.split()[0] == "balance.rho")
    assert rho.split()[1] == "0.7"
    method = next(row for row in rows if row.split()[0] == "balance.method")
    assert "weighted_sum" in method  # choices are listed
    assert "FieldDoc" not in "\n".join(lines)


def test_a_part_of_the_fields_and_json(marble):
    part = marble("recipes", "--fields", "balance").out
    assert "balance.rho" in part and "optim.lr" not in part
    one = json.loads(marble("recipes", "--fields", "balance.rho", "--json").out)
    assert one == {
        "fields": [
            {
                "field": "balance.rho",
                "type": "number",
                "default": 0.7,
                "description": next(d.description for d in reference() if d.path == "balance.rho"),
            }
        ]
    }
    everything = json.loads(marble("recipes", "--fields", "--json").out)["fields"]
    assert [entry["field"] for entry in everything] == [d.path for d in reference()]
    wrong = marble("recipes", "--fields", "balence")
    assert wrong.status == 2 and "did you mean balance?" in wrong.err


def test_version(marble):
    result = marble("--version")
    assert (result.status, result.out) == (0, f"marble {package.__version__}\n")


@pytest.mark.parametrize(
    ("words", "wanted", "absent"),
    [
        ("train studio-f", {"studio-fast", "studio-fixed"}, {"studio"}),
        ("recipes balance.rh", {"balance.rho="}, {"balance.every="}),
        ("doctor min", {"mine.yaml"}, {"mine.txt"}),
        ("eval b", {"base"}, {"studio-trained"}),
        ("sample ", {"base", "studio-trained"}, {"mine.txt"}),
        ("prompts ", {"geneval", "ocr"}, {"mine.txt"}),
    ],
)
def test_completion(tmp_path, words, wanted, absent):
    for name in ("mine.yaml", "mine.txt"):
        (tmp_path / name).touch()
    script = "from marble.cli import app; app(prog_name='marble')"
    environment = {
        **os.environ,
        "_MARBLE_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": f"marble {words}",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    offered = set(done.stdout.replace('"', " ").split())
    assert wanted <= offered, done.stdout + done.stderr
    assert not absent & offered


def test_a_file_with_another_ending_is_offered(marble, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("extends: studio\n")
    monkeypatch.chdir(tmp_path)
    for asked in ("mine.yml", "mien.yaml"):
        result = marble("recipes", asked)
        assert result.status == 2 and "did you mean mine.yaml?" in result.err
    assert "did you mean studio-fast?" in marble("recipes", "studio-fats").err


def test_two_rewards_are_told_that_alpha_is_one_half(marble, toy, tmp_path):
    """And it is: the note must be true of the run it stands in front of."""
    out = tmp_path / "run"
    words = ["balance.method=marble", "balance.every=1", "train.steps=2", "eval.at_start=false"]
    two = "rewards.drop=[dark]"
    result = marble("train", toy.recipe_file, two, *words, "--out", out, "--device", "cpu")
    assert result.status == 0, result.err
    assert "α is (½, ½) in every step" in result.err
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert row["alpha/red"] == pytest.approx(0.5, abs=1e-12)
    assert "α is (½, ½)" in marble("doctor", toy.recipe_file, two, *words).out
    for other in ("balance.method=uniform", "balance.priorities={red: 2}"):
        assert "½" not in marble("doctor", toy.recipe_file, two, *words, other).out
    assert "½" not in marble("doctor", toy.recipe_file, *words).out


def test_every_listed_recipe_loads():
    for name in list_recipes():
        assert load_recipe(name).name == name
