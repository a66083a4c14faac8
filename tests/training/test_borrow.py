"""A base that another run has evaluated is taken over where it is the same, and only there."""

import json

import pytest
from rich.console import Console

from _toy_world import run_toy
from marble.study.measure import measure


def run(folder, *words):
    """Two steps in the toy world; what the run said."""
    with (folder.parent / "said.txt").open("a+") as said:
        console = Console(file=said, width=200)
        run_toy(folder, "train.steps=2", "eval.images_per_prompt=1", *words, console=console)
        said.seek(0)
        return said.read()


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    run(folder)
    return folder


def evaluations(folder):
    lines = (folder / "evals.jsonl").read_text().splitlines()
    index = (folder / "evals/step-000000/index.json").read_text()
    return [json.loads(line) for line in lines], index


def test_the_base_is_taken_over(first, tmp_path):
    method = "balance.method=uniform"
    run(tmp_path / "own", method)
    run(tmp_path / "borrowed", method, f"eval.base={first}")
    own, borrowed = measure(tmp_path / "own"), measure(tmp_path / "borrowed")
    assert borrowed.base == own.base and borrowed.gains == own.gains
    assert borrowed.scores == own.scores
    records, index = evaluations(tmp_path / "borrowed")
    assert [record["policy"] for record in records] == ["base", "trained"]
    theirs, their_index = evaluations(first)
    assert records[0] == theirs[0] and index == their_index  # its seconds, too: not drawn again


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("eval.seed=5", "another seed"),
        ("rollout.steps=9", "another sampling"),
        ("eval.prompts=3", "another prompts"),
        ("rewards.drop=[vivid]", "another rewards"),
    ],
)
def test_another_evaluation_is_drawn_anew(first, tmp_path, word, why):
    said = run(tmp_path / "other", word, f"eval.base={first}")
    assert why in said
    records, _ = evaluations(tmp_path / "other")
    assert len(records) == 2 and records[0]["seconds"] != evaluations(first)[0][0]["seconds"]


def test_a_device_that_is_another_one(first, tmp_path):
    known = json.loads((first / "environment.json").read_text())
    moved = tmp_path / "moved"
    (moved / "evals").mkdir(parents=True)
    for name in ("config.yaml", "evals.jsonl"):
        (moved / name).write_text((first / name).read_text())
    (moved / "evals/step-000000").symlink_to(first / "evals/step-000000")
    (moved / "environment.json").write_text(json.dumps(known | {"device": "NVIDIA H200"}))
    assert "another device" in run(tmp_path / "here", f"eval.base={moved}")


def test_a_folder_without_an_evaluation(tmp_path):
    assert "no evaluation to take over" in run(tmp_path / "new", f"eval.base={tmp_path / 'none'}")
