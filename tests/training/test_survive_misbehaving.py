"""Rewards that end the process, say nothing, or write where they should not, in a run."""

import json

import numpy as np
import pytest
from _survive import final_state, make_world, rows, run_here, start_cli
from PIL import Image

from marble.errors import MarbleError, RewardError
from marble.training.loop import Trainer

REWARDS = """
import ctypes, os, sys

calls = 0

def leave(images, prompts, metadata):
    global calls
    calls += 1
    if calls > 2:
        sys.exit(0)
    return [0.1 * i for i in range(len(images))]

def leave_at_once(images, prompts, metadata):
    os._exit(0)

def vanish(images, prompts, metadata):
    if os.environ.get("VANISH"):
        ctypes.CDLL(None)._exit(0)
    return [0.1 * i for i in range(len(images))]

def blacken(images, prompts, metadata):
    images.zero_()
    return [0.1 * i for i in range(len(images))]

def nothing(images, prompts, metadata):
    return [float("nan")] * len(images)

def at_first(images, prompts, metadata):
    global calls
    calls += 1
    return [0.1 * i if calls == 1 else None for i in range(len(images))]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    recipe = make_world(tmp_path_factory.mktemp("misbehaving"))
    (recipe.parent / "bad.py").write_text(REWARDS)
    (recipe.parent / "quits.py").write_text("import sys; sys.exit(0)")
    return recipe


def settings(world, entry, *more):
    here = world.parent
    entry = entry.format(here=here)
    return [
        f"rewards.train=[{entry}, {{name: red, reward: '{here}/toys.py:red'}}]",
        "rollout.batch_size=12",
        "eval.at_start=false",
        "eval.every=0",
        "train.probe=0",  # some of these count their calls
        *more,
    ]


def status(run):
    return json.loads((run / "run.json").read_text())["status"]


def cli(world, tmp_path, entry, *more):
    said = tmp_path / "said"
    args = ["train", world, *settings(world, entry, *more), "--out", tmp_path / "run"]
    process = start_cli(said, *args, "--device", "cpu")
    process.join(90)
    return process.exitcode, said.read_text()


@pytest.mark.parametrize(
    ("name", "cause"), [("leave", "SystemExit: 0"), ("leave_at_once", "os._exit(0)")]
)
def test_exit_in_a_reward_is_a_line_and_a_status(world, tmp_path, name, cause):
    code, said = cli(world, tmp_path, f"{{{{name: bad, reward: '{{here}}/bad.py:{name}'}}}}")
    assert code == 2 and "Traceback" not in said
    (line,) = [text for text in said.splitlines() if text.startswith("marble:")]
    assert "reward bad failed on" in line and cause in line
    assert status(tmp_path / "run") == "failed"


def test_exit_at_import_is_a_line_and_a_status(world, tmp_path):
    code, said = cli(world, tmp_path, "{{name: bad, reward: '{here}/quits.py:f'}}")
    assert code == 2 and "quits.py" in said and "SystemExit: 0" in said and "Traceback" not in said


def test_exit_under_skip_sample_is_skipped(world, tmp_path):
    words = settings(
        world,
        "{{name: bad, reward: '{here}/bad.py:leave'}}",
        "rewards.on_error=skip_sample",
        "train.steps=4",
    )
    outcome, said = run_here(world, tmp_path / "run", *words)
    assert outcome.finished and "SystemExit: 0" in said
    assert [row["reward/bad/skipped"] for row in rows(tmp_path / "run")] == [0, 0, 12, 12]


def test_whatever_ends_the_process_the_folder_does_not_say_running(world, tmp_path, monkeypatch):
    def leave(self):
        raise SystemExit(0)

    monkeypatch.setattr(Trainer, "run_epoch", leave)
    with pytest.raises(SystemExit):
        run_here(world, tmp_path / "run", "eval.at_start=false")
    assert status(tmp_path / "run") == "failed"


def test_an_isolated_reward_that_vanishes_is_a_line_and_a_status(world, tmp_path, monkeypatch):
    monkeypatch.setenv("VANISH", "1")
    entry = "{{name: bad, reward: '{here}/bad.py:vanish', isolate: true}}"
    error, _ = run_here(world, tmp_path / "run", *settings(world, entry))
    assert isinstance(error, RewardError)
    assert "reward bad failed on" in str(error) and "process ended (status 0)" in str(error)
    assert status(tmp_path / "run") == "failed"


def test_a_reward_that_writes_is_named_and_spoils_nothing(world, tmp_path):
    common = ["train.steps=1"]
    entry = "{{name: bad, reward: '{here}/bad.py:%s'}}"
    outcome, said = run_here(world, tmp_path / "run", *settings(world, entry % "blacken", *common))
    assert outcome.finished and said.count("reward bad: writes into the pictures") == 1
    run_here(world, tmp_path / "clean", *settings(world, entry % "vanish", *common))
    tables = [
        json.loads((tmp_path / name / "advantages/step-000001.json").read_text())["score"]
        for name in ("run", "clean")
    ]
    assert tables[0] == tables[1]  # not one score of the other reward differs
    for file in (tmp_path / "run" / "samples").rglob("*.png"):
        assert np.array(Image.open(file)).any()


# -- silence --------------------------------------------------------------------------------------


NOTHING = "{{name: bad, reward: '{here}/bad.py:nothing'}}"


def test_a_reward_without_a_score_is_told_at_once_and_stops_the_run(world, tmp_path):
    error, said = run_here(world, tmp_path / "run", *settings(world, NOTHING))
    assert isinstance(error, RewardError)
    assert "reward bad gave no score for any of the 12 pictures" in str(error)
    assert "5 epochs in a row" in str(error) and "rewards.silent_epochs=0" in str(error)
    table = rows(tmp_path / "run")
    assert [row["step"] for row in table] == [1, 2, 3, 4]
    assert all("bad gave no score" in str(row["notes"]) for row in table)
    assert "step 1: reward bad gave no score" in said
    assert status(tmp_path / "run") == "failed"


def test_the_count_survives_a_resume(world, tmp_path):
    out = tmp_path / "run"
    words = settings(world, NOTHING, "train.steps=3")
    assert run_here(world, out, *words)[0].finished
    error, _ = run_here(out / "config.yaml", out, "train.steps=20", resume=True)
    assert isinstance(error, MarbleError) and "5 epochs in a row" in str(error)
    assert len(rows(out)) == 4


def test_one_asked_not_to_stop_does_not(world, tmp_path):
    words = settings(world, NOTHING, "rewards.silent_epochs=0", "train.steps=6")
    outcome, said = run_here(world, tmp_path / "run", *words)
    assert outcome.finished and "trains nothing" in said and "the run stops after" not in said


def test_only_epochs_in_a_row_count_and_only_with_prompts_for_it(world, tmp_path):
    entry = "{{name: bad, reward: '{here}/bad.py:at_first'}}"
    words = settings(world, entry, "rewards.silent_epochs=3", "train.steps=9")
    error, _ = run_here(world, tmp_path / "run", *words)
    assert isinstance(error, RewardError) and len(rows(tmp_path / "run")) == 3
    entry = "{{name: bad, reward: '{here}/bad.py:nothing', sources: [ocr]}}"
    words = settings(world, entry, "data.sources.ocr.share=0.001", "train.steps=6")
    outcome, _ = run_here(world, tmp_path / "rare", *words)
    assert outcome.finished
    assert "gave no score" not in str([row.get("notes") for row in rows(tmp_path / "rare")])
    assert final_state(tmp_path / "rare")[1]["rewards"][0][0]["silence"] == {}
