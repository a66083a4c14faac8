"""Rewards that fail in the middle of a run: it stops or skips, and never makes up a score."""

import json
import random
import re
from pathlib import Path

import pytest
from _survive import final_state, make_world, rows, run_here, start_cli

from marble.errors import RewardError
from marble.training.checkpoint import newest_complete

FAULTS = {
    "exception": "RuntimeError: the scorer has lost its temper",
    "length": "returned shape (11,) for 12 pictures; return one number per picture, or None",
    "nan": "returned nan",
    "inf": "returned inf",
    "hang": "no answer within 1 s",
}
# Of the one batch of an epoch: the sample at fault, or all where it cannot be told.
SKIPPED = {"exception": 1, "length": 12, "nan": 1, "inf": 1, "hang": 12}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = make_world(tmp_path_factory.mktemp("rewards"))
    # The faulty reward counts its calls: training alone may ask it.
    path.write_text(path.read_text().replace("probe: 4", "probe: 0"))
    return path


def settings(recipe, tmp_path, kind, at, *more):
    here = Path(__file__).parent / "_survive_faulty.py"
    options = f"{{kind: {kind}, at: {at}, book: '{tmp_path}/book'}}"
    entries = f"[{{name: red, reward: '{recipe.parent}/toys.py:red'}}"
    entries += f", {{name: faulty, reward: '{here}:Faulty', options: {options}}}]"
    return [
        f"rewards.train={entries}",
        "rollout.batch_size=12",
        "eval.at_start=false",
        "eval.every=0",
        "rewards.deadline_s=1",
        *more,
    ]


def audit(run, book):
    """Every score of the run was given by the reward, for that prompt, and is used once."""
    given = [tuple(json.loads(line)) for line in book.read_text().splitlines()]
    left = set(given)
    missing = 0
    for path in sorted((run / "advantages").glob("*.json")):
        table = json.loads(path.read_text())
        k = table["rewards"].index("faulty")
        for i, sample in enumerate(table["samples"]):
            score, advantage = table["score"][k][i], table["advantage"][k][i]
            assert (score is None) == (advantage is None)
            if score is None:
                missing += 1
            else:
                assert (sample["prompt"], score) in left
                left.discard((sample["prompt"], score))
    for index in (run / "evals").glob("*/index.json"):
        for sample in json.loads(index.read_text())["samples"]:
            if sample["scores"]["faulty"] is not None:
                assert (sample["prompt"], sample["scores"]["faulty"]) in left
    return missing


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failing_reward_is_skipped_counted_and_shown(recipe, tmp_path, kind):
    at = random.Random(kind).randint(2, 3)
    changes = settings(recipe, tmp_path, kind, at, "train.steps=3", "rewards.on_error=skip_sample")
    outcome, said = run_here(recipe, tmp_path / "run", *changes)
    assert outcome.finished
    skipped = [row["reward/faulty/skipped"] for row in rows(tmp_path / "run")]
    assert skipped == [SKIPPED[kind] if step == at else 0 for step in (1, 2, 3)]
    assert all(row["reward/red/skipped"] == 0 for row in rows(tmp_path / "run"))
    place = r"_survive_faulty.py, line \d+: " if kind == "exception" else ""
    warning = f"reward faulty: skipped {SKIPPED[kind]} of 12: {place}{re.escape(FAULTS[kind])}"
    assert re.search(f"step {at}: {warning}", said)
    assert any(re.fullmatch(warning, n) for n in rows(tmp_path / "run")[at - 1]["notes"])
    assert audit(tmp_path / "run", tmp_path / "book") == SKIPPED[kind]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failing_reward_stops_the_run(recipe, tmp_path, kind):
    at = random.Random(f"stop {kind}").randint(2, 3)
    changes = settings(recipe, tmp_path, kind, at, "train.steps=3")
    error, _ = run_here(recipe, tmp_path / "run", *changes)
    assert isinstance(error, RewardError)
    assert str(error).startswith("reward faulty failed on '") and FAULTS[kind] in str(error)
    assert "\n" not in str(error)
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(1, at))
    good, passed_over = newest_complete(tmp_path / "run" / "checkpoints")
    assert good.name == f"step-{at - 1:06d}" and not passed_over
    assert audit(tmp_path / "run", tmp_path / "book") == 0


def test_once_the_reward_is_mended_the_run_goes_on(recipe, tmp_path):
    out = tmp_path / "run"
    error, _ = run_here(recipe, out, *settings(recipe, tmp_path, "nan", 2, "train.steps=3"))
    assert isinstance(error, RewardError)
    mended = settings(recipe, tmp_path, "nan", 99)
    outcome, _ = run_here(out / "config.yaml", out, *mended, resume=True)
    assert outcome.finished and final_state(out)[1]["step"] == 3


@pytest.mark.parametrize(
    "kind, at, words",
    [
        ("constant", 1, "values were all 0.5; it teaches nothing"),
        ("range", 2, "1 values outside [0, 1], e.g. 1.5"),
        ("shift", 11, "the mean jumped to"),
    ],
)
def test_a_suspicious_reward_is_reported_while_training(recipe, tmp_path, kind, at, words):
    steps = {"constant": 7, "range": 3, "shift": 12}[kind]
    changes = settings(recipe, tmp_path, kind, at, f"train.steps={steps}", "log.samples_every=0")
    outcome, said = run_here(recipe, tmp_path / "run", *changes)
    assert outcome.finished
    noted = [row["step"] for row in rows(tmp_path / "run") if words in str(row.get("notes"))]
    assert noted == [steps]  # once an episode, when it is sure
    assert words in said


def test_the_command_line_says_it_in_one_line(recipe, tmp_path):
    changes = settings(recipe, tmp_path, "exception", 2, "train.steps=3")
    said = tmp_path / "said"
    args = ["train", recipe, *changes, "--out", tmp_path / "run", "--device", "cpu"]
    process = start_cli(said, *args)
    process.join(60)
    assert process.exitcode == 2
    lines = [line for line in said.read_text().splitlines() if "marble:" in line]
    assert len(lines) == 1 and "reward faulty failed on" in lines[0]
    assert "Traceback" not in said.read_text()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
