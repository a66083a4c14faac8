"""Killed at any moment and resumed, a run ends as if nothing had happened, bit for bit."""

import random
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from _survive import (
    assert_same_run,
    kill_at,
    make_world,
    rows,
    run_here,
    run_to_end,
    spawn,
    start_cli,
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("survive"))


@pytest.fixture(scope="module")
def unbroken(recipe, tmp_path_factory):
    """The run that nobody disturbs."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    process = spawn(run_to_end, str(recipe), str(out))
    process.join(200)
    assert process.exitcode == 0
    return out


def test_killed_and_resumed_is_bit_for_bit_the_unbroken_run(recipe, unbroken, tmp_path):
    """Six kills: some a moment after a step, some just as a checkpoint is being written.

    By what the run has done, not by the clock: a fast machine would be through with it.
    """
    out, rng, kills = tmp_path / "run", random.Random(5), 0

    def steps() -> int:
        file = out / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    while kills < 6:
        resuming = (out / "config.yaml").exists()
        process = spawn(run_to_end, str(recipe), str(out), (), resuming)
        if kills % 2:
            writing = lambda: any((out / "checkpoints").glob(".writing-*"))  # noqa: E731
            killed = kill_at(process, rng.uniform(0, 0.02), writing)
        else:
            first = 1 + 3 * (kills // 2)  # 1, 4, 7 of 10
            killed = kill_at(process, rng.uniform(0, 0.05), lambda n=first: steps() >= n)
        if not killed:  # it was done before its turn came
            assert process.exitcode == 0
            break
        kills += 1
    assert kills >= 4
    process = spawn(run_to_end, str(recipe), str(out), (), (out / "config.yaml").exists())
    process.join(200)
    assert process.exitcode == 0
    assert_same_run(unbroken, out)


def test_every_row_is_there_once_and_numbered(unbroken):
    assert [row["step"] for row in rows(unbroken)] == list(range(1, 11))
    assert [row["step"] for row in rows(unbroken, "evals.jsonl")] == [0, 4, 8, 10]
    noisy = [row["reward/noisy/mean"] for row in rows(unbroken)]
    assert len(set(noisy)) == 10


def test_two_unbroken_runs_agree_so_the_comparison_means_something(recipe, unbroken, tmp_path):
    """The same recipe twice is the same run, and another seed is not."""
    again, _ = run_here(recipe, tmp_path / "again")
    assert again.finished
    assert_same_run(unbroken, tmp_path / "again")
    other, _ = run_here(recipe, tmp_path / "other", "train.seed=1", "train.steps=2")
    assert other.finished
    with pytest.raises(AssertionError):
        assert_same_run(unbroken, tmp_path / "other")


def test_a_run_without_a_checkpoint_starts_over(recipe, tmp_path):
    run_here(recipe, tmp_path / "a", "train.steps=2")
    out = tmp_path / "b"
    run_here(recipe, out, "train.steps=2")
    for path in (out / "checkpoints").glob("step-*"):
        path.rename(tmp_path / path.name)  # as if it had been killed before the first one
    outcome, said = run_here(out / "config.yaml", out, resume=True)
    assert outcome.finished and "starting over" in said
    assert_same_run(tmp_path / "a", out)


STATEFUL = {
    "a gate": ["balance.method=marble", "balance.hybrid=gate", "balance.every=2"],
    "halves": ["balance.method=marble", "balance.heldout_half=true"],
    "progress": ["balance.method=progress", "balance.progress.warmup=2"],
    "dropout": ["balance.method=dropout"],
    "several steps an epoch": ["train.steps_per_epoch=2", "train.inner_epochs=2", "train.steps=8"],
}

QUICK = ("a gate", "several steps an epoch")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in STATEFUL],
)
def test_every_kind_of_state_is_taken_up_again(recipe, tmp_path, kind):
    changes = ["train.steps=5", *STATEFUL[kind], "eval.at_start=false", "eval.every=0"]
    changes += ["log.samples_every=4", "data.prompts_per_epoch=2"]
    out = tmp_path / "run"
    stopped, _ = run_here(recipe, out, *changes, "train.max_hours=1e-9")
    assert not stopped.finished
    resumed, _ = run_here(out / "config.yaml", out, "train.max_hours=null", resume=True)
    assert resumed.finished
    unbroken, _ = run_here(recipe, tmp_path / "unbroken", *changes)
    assert unbroken.finished
    assert_same_run(tmp_path / "unbroken", out)


def test_trackers_go_on_with_the_same_run(recipe, tmp_path, monkeypatch):
    opened, logged = [], []
    fake = SimpleNamespace(
        util=SimpleNamespace(generate_id=lambda: f"id{len(opened)}{random.random()}"),
        init=lambda **options: (
            opened.append(options)
            or SimpleNamespace(log=lambda values, step: logged.append(step), finish=lambda: None)
        ),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    out = tmp_path / "run"
    changes = ["train.steps=2", "log.trackers=[wandb]", "eval.every=0", "eval.at_start=false"]
    run_here(recipe, out, *changes, "train.max_hours=1e-9")
    run_here(out / "config.yaml", out, "train.max_hours=null", resume=True)
    assert len(opened) == 2 and opened[0]["id"] == opened[1]["id"]
    assert opened[1]["resume"] == "allow" and sorted(set(logged)) == [1, 2]


@pytest.mark.slow
def test_twenty_kills_of_the_command_line(recipe, tmp_path):
    """`marble train`, killed twenty times at random moments, each time `marble train --resume`."""
    calm, out, said = tmp_path / "calm", tmp_path / "run", tmp_path / "said"
    first = ["train", recipe, "train.steps=60", "--device", "cpu", "--out"]
    again = ["train", "--resume", out, "--device", "cpu"]
    process = start_cli(said, *first, calm)
    process.join(600)
    assert process.exitcode == 0
    rng, kills = random.Random(0), 0
    while kills < 20:
        there = (out / "config.yaml").exists()
        process = start_cli(said, *(again if there else [*first, out]))
        # Some moments lie anywhere, also before the run has begun; the others shortly after it has
        # made some progress, so that twenty kills do not end where they began.
        if rng.random() < 0.3:
            killed = kill_at(process, rng.uniform(0, 2))
        else:
            newer = partial(lambda seen: _newest(out) > seen, _newest(out))
            killed = kill_at(process, rng.uniform(0, 0.4), newer)
        assert killed, said.read_text()
        kills += 1
    process = start_cli(said, *again)
    process.join(600)
    assert process.exitcode == 0
    assert 2 <= said.read_text().count("resuming after step") <= 21
    assert_same_run(calm, out)


def _newest(out):
    return max((p.name for p in (out / "checkpoints").glob("step-*")), default="")
