"""Asked to stop, a run finishes its step, saves, says how to go on, and ends with status 0."""

import json
import os
import signal
import time

import pytest
from _survive import (
    assert_same_run,
    final_state,
    make_world,
    rewards_override,
    rows,
    run_here,
    start_cli,
    wait_for,
)

from marble.training.stop import StopRequest

SLOW = '''
import time

calls = 0


def slow(images, prompts, metadata):
    """Takes a minute for its third batch."""
    global calls
    calls += 1
    if calls == 3:
        open("SIGN", "w").close()
        time.sleep(60)
    return images[:, 0].float().mean((1, 2)).div(255).tolist()
'''


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("stop"))


def test_a_signal_ends_the_run_well_and_it_goes_on_exactly(recipe, tmp_path):
    out, said = tmp_path / "run", tmp_path / "said"
    changes = ["train.steps=40", "train.checkpoint_every=50", "eval.every=0", "eval.at_start=false"]
    process = start_cli(said, "train", recipe, *changes, "--out", out, "--device", "cpu")
    wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) >= 2, process)
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 0
    step = rows(out)[-1]["step"]
    assert step < 40
    words = said.read_text()
    assert f"stopped after step {step} (SIGTERM)" in words
    assert f"marble train --resume {out}\n" in words
    assert "Traceback" not in words
    assert final_state(out)[1]["step"] == step
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    # The printed command, up to a step that is worth waiting for; and the same without the stop.
    end = [f"train.steps={step + 2}"]
    process = start_cli(said, "train", "--resume", out, *end, "--device", "cpu")
    process.join(60)
    assert process.exitcode == 0
    run_here(recipe, tmp_path / "unbroken", *changes, *end)
    assert_same_run(tmp_path / "unbroken", out)


def test_ctrl_c_waits_for_the_step_and_a_second_one_does_not(recipe, tmp_path):
    out, said, sleeping = tmp_path / "run", tmp_path / "said", tmp_path / "sleeping"
    (tmp_path / "slow.py").write_text(SLOW.replace("SIGN", str(sleeping)))
    slow = [rewards_override(tmp_path / "slow.py", "slow"), "rollout.batch_size=12"]
    slow += ["eval.at_start=false", "train.probe=0"]
    process = start_cli(said, "train", recipe, *slow, "--out", out, "--device", "cpu")
    wait_for(sleeping.exists, process)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    process.join(15)
    assert process.exitcode == 130
    assert "marble: interrupted" in said.read_text()
    assert final_state(out)[1]["step"] == 2  # what was there before is still good


def test_one_ctrl_c_is_a_safe_stop(recipe, tmp_path):
    out, said = tmp_path / "run", tmp_path / "said"
    process = start_cli(said, "train", recipe, "train.steps=500", "--out", out, "--device", "cpu")
    wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) >= 1, process)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 0
    assert "(SIGINT); go on with" in said.read_text()
    assert final_state(out)[1]["step"] == rows(out)[-1]["step"]


def test_the_clock_stops_a_run_and_it_goes_on_exactly(recipe, tmp_path):
    out = tmp_path / "run"
    outcome, said = run_here(recipe, out, "train.steps=3", "train.max_hours=1e-9")
    assert (outcome.finished, outcome.step) == (False, 1)
    assert "train.max_hours is over" in said and f"marble train --resume {out}" in said
    resumed, _ = run_here(out / "config.yaml", out, "train.max_hours=null", resume=True)
    assert resumed.finished
    run_here(recipe, tmp_path / "unbroken", "train.steps=3")
    assert_same_run(tmp_path / "unbroken", out)


def test_handlers_are_put_back():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest(None) as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert stop and stop.reason == "SIGTERM"
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
