"""However many processes share a run, it is the same run."""

import json
import time

import numpy as np
import pytest
from _survive import (
    assert_same_run,
    build_only,
    final_state,
    make_world,
    rewards_override,
    rows,
    run_commands,
    run_compiled,
    run_processes,
    run_to_end,
)

from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.training import fsdp

STEPS = 10


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    """Runs with so many processes; every kind of run once."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def make(name, *sizes, overrides=()):
        if name not in done:
            out = folder / name
            toys = rewards_override(recipe.parent / "toys.py", "red", "blue", "dark")
            common = [toys, "eval.every=0", f"train.steps={STEPS}", *overrides]
            for part, size in enumerate(sizes):
                stop_at = STEPS * (part + 1) // len(sizes)
                # The second part of a run takes its recipe from the folder.
                changes = common if part == 0 else []
                changes = [*changes, f"train.steps={stop_at}"]
                statuses = run_processes(size, recipe, out, *changes, resume=part > 0)
                assert statuses == [0] * size
            done[name] = out
        return done[name]

    return make


def assert_same(a, b):
    """Same samples, same advantages, α to 1e-6, weights to 1e-5."""
    for step in range(1, STEPS + 1):
        one, two = (
            json.loads((r / "advantages" / f"step-{step:06d}.json").read_text()) for r in (a, b)
        )
        assert one["samples"] == two["samples"]
        # Advantages are written with four digits.
        for key, bound in (("score", 1e-6), ("advantage", 1.1e-4)):
            x, y = (np.array(t[key], dtype=float) for t in (one, two))
            assert np.array_equal(np.isnan(x), np.isnan(y))
            assert np.nanmax(np.abs(x - y)) <= bound, (key, step)
        pictures = [
            json.loads((r / "samples" / f"step-{step:06d}" / "index.json").read_text())
            for r in (a, b)
        ]
        seeds = [[(s["prompt"], s["seed"]) for s in p["samples"]] for p in pictures]
        assert seeds[0] == seeds[1]
    for x, y in zip(rows(a), rows(b), strict=True):
        assert x["step"] == y["step"]
        alphas = [key for key in x if key.startswith(("alpha/", "alpha_raw/"))]
        assert len(alphas) == 6
        for key in alphas:
            assert abs(x[key] - y[key]) <= 1e-6, (x["step"], key)
        statistics = [key for key in x if key.startswith("drift/")]
        assert len(statistics) == 7 and statistics == [k for k in y if k.startswith("drift/")]
        for key in statistics:  # of all pictures, whoever drew them
            assert x[key] == pytest.approx(y[key], abs=1e-6), (x["step"], key)
    (tensors_a, _), (tensors_b, _) = final_state(a), final_state(b)
    checked = 0
    for name, tensor in tensors_a.items():
        if name.startswith(("state/live", "state/old", "state/ema", "lora/")):
            assert (tensor - tensors_b[name]).abs().max() <= 1e-5, name
            checked += 1
    assert checked > 20
    moved = max(float(t.abs().max()) for n, t in tensors_a.items() if ".lora_B." in n)
    assert moved > 1e-3  # B starts at zero: there was something to differ in


def test_two_processes_are_one(run):
    assert_same(run("one", 1), run("two", 2))


@pytest.mark.slow
def test_two_processes_draw_the_same_preferences(recipe, tmp_path):
    """Two steps; a pixel may turn to the next of its 256 values, so weights agree to a hundredth
    of what was learned. Other preferences would change all of it."""
    toys = rewards_override(recipe.parent / "toys.py", "red", "blue", "dark")
    words = [toys, "eval.every=0", "train.steps=2", "balance.method=steer"]
    words += ["model.lora={rank: 6, alpha: 12}"]
    for name, size in (("one", 1), ("two", 2)):
        assert run_processes(size, recipe, tmp_path / name, *words) == [0] * size
    for x, y in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        for key in (k for k in x if k.startswith(("alpha/", "reward/", "loss"))):
            assert x[key] == pytest.approx(y[key], rel=1e-3, abs=1e-4), key
    (one, _), (two, _) = final_state(tmp_path / "one"), final_state(tmp_path / "two")
    learned = [name for name in one if name.startswith("state/live") and ".lora_B." in name]
    size = sum(float(one[name].square().sum()) for name in learned)
    apart = sum(float((one[name] - two[name]).square().sum()) for name in learned)
    assert len(learned) > 5 and size > 0 and apart < 1e-4 * size


def test_two_processes_share_the_pairs_too(run):
    """Five pairs for two processes: one is drawn twice, and counted once.

    Sums in another order differ in the last digit, which turns a pixel where its value lies between
    two of the 256: not with this seed.
    """
    words = ["balance.method=progress", "balance.progress.paired=5", "train.seed=1"]
    a, b = run("pairs, one", 1, overrides=words), run("pairs, two", 2, overrides=words)
    assert_same(a, b)
    for one, two in zip(rows(a)[1:], rows(b)[1:], strict=True):
        found = [key for key in one if key.startswith(("progress", "coefficient/"))]
        assert len(found) == 9
        for key in found:
            assert one[key] == pytest.approx(two[key], abs=1e-4), (one["step"], key)


def test_begun_with_two_resumed_with_three(run):
    assert_same(run("one", 1), run("two then three", 2, 3))


def test_the_extremes_are_those_of_all_processes(recipe, tmp_path):
    """Two steps, before a pixel turns to the next of its 256 values."""
    toys = rewards_override(recipe.parent / "toys.py", "red", "blue", "dark")
    words = [toys, "eval.every=0", "eval.at_start=false", "train.steps=2", "train.extremes=0.4"]
    for name, size in (("one", 1), ("two", 2)):
        assert run_processes(size, recipe, tmp_path / name, *words) == [0] * size
    for x, y in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        for key in (k for k in x if k.startswith(("alpha/", "reward/", "loss", "grad_norm/"))):
            assert x[key] == pytest.approx(y[key], rel=1e-4), key
    assert apart(tmp_path / "one", tmp_path / "two") < 1e-6


def apart(a, b):
    """Squared distance of what two runs have learned, by its squared size."""
    (one, _), (two, _) = final_state(a), final_state(b)
    learned = [name for name in one if name.startswith("state/live") and ".lora_B." in name]
    size = sum(float(one[name].square().sum()) for name in learned)
    assert len(learned) > 5 and size > 0
    return sum(float((one[name] - two[name]).square().sum()) for name in learned) / size


def test_sharding_the_frozen_base_changes_nothing(run):
    sharded = run("fsdp", 2, overrides=["train.fsdp=true"])
    assert_same(run("one", 1), sharded)


@pytest.mark.slow  # tracing takes a minute
def test_sharded_blocks_are_compiled_and_change_nothing(recipe, tmp_path):
    toys = rewards_override(recipe.parent / "toys.py", "red", "blue", "dark")
    words = [toys, "eval.every=0", "eval.at_start=false", "train.steps=4", "train.fsdp=true"]
    bodies = {"eager": run_to_end, "compiled": run_compiled}
    for name, body in bodies.items():
        assert run_processes(2, recipe, tmp_path / name, *words, body=body) == [0, 0]
    for x, y in zip(rows(tmp_path / "eager"), rows(tmp_path / "compiled"), strict=True):
        assert y["compile/graphs"] > 0 and y["compile/breaks"] == y["compile/eager"] == 0
        for key in (k for k in x if k.startswith(("alpha/", "loss", "grad_norm/"))):
            assert x[key] == pytest.approx(y[key], rel=1e-4), key
    assert apart(tmp_path / "eager", tmp_path / "compiled") < 1e-6


def test_a_sharded_base_is_held_once_among_the_processes(recipe, tmp_path):
    for name, sharded in (("whole", "false"), ("shards", "true")):
        (tmp_path / name).mkdir()
        statuses = run_processes(
            2, recipe, tmp_path / name, f"train.fsdp={sharded}", body=build_only
        )
        assert statuses == [0, 0]
    whole, *shards = (
        int((tmp_path / name).read_text())
        for name in ("whole/held-0", "shards/held-0", "shards/held-1")
    )
    # The LoRA of the old policy stays whole on every process; it is a small part.
    assert max(shards) < 0.6 * whole and sum(shards) >= whole


def test_sharding_says_what_it_cannot_do(recipe):
    for overrides, message in (
        (["data.prompts_per_epoch=1", "data.images_per_prompt=5"], "must divide by 2 processes"),
        (["train.steps_per_epoch=2"], "train.steps_per_epoch=1"),
        (["train.extremes=0.5"], "train.extremes=1"),
    ):
        chosen = load_recipe(str(recipe), ["train.fsdp=true", *overrides])
        fsdp.check(chosen, 1)
        with pytest.raises(MarbleError, match=message):
            fsdp.check(chosen, 2)


LONELY = '''
import os

calls = 0


def lonely(images, prompts, metadata):
    """Fails on the second process only, once training has begun."""
    global calls
    calls += 1
    if os.environ["RANK"] == "1" and calls == 3:
        raise RuntimeError("out of ink")
    return images[:, 0].float().mean((1, 2)).div(255).tolist()
'''


def test_a_reward_that_fails_on_one_process_stops_all_of_them_at_once(recipe, tmp_path):
    (tmp_path / "lonely.py").write_text(LONELY)
    changes = [rewards_override(tmp_path / "lonely.py", "lonely"), "eval.at_start=false"]
    started = time.monotonic()
    statuses = run_processes(2, recipe, tmp_path / "run", *changes)
    assert statuses == [2, 2]
    assert time.monotonic() - started < 100  # nobody waits for a process that is gone
    status = json.loads((tmp_path / "run" / "run.json").read_text())
    assert status["status"] == "failed"


KILLER = '''
import os, signal

calls = 0


def killer(images, prompts, metadata):
    """`kill -9` of one process, in the middle of an epoch."""
    global calls
    calls += 1
    if os.environ["RANK"] == os.environ["SURVIVE_VICTIM"] and calls == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return images[:, 0].float().mean((1, 2)).div(255).tolist()
'''


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_is_killed(recipe, tmp_path, monkeypatch, victim):
    """The one that is left says so in one line, with the way to go on, and the run is marked."""
    (tmp_path / "killer.py").write_text(KILLER)
    changes = [rewards_override(tmp_path / "killer.py", "killer"), "eval.at_start=false"]
    said = {rank: tmp_path / f"said-{rank}" for rank in (0, 1)}
    words = ["train", str(recipe), *changes, "--out", str(tmp_path / "run"), "--device", "cpu"]
    statuses = run_commands(words, said, SURVIVE_VICTIM=str(victim))
    survivor = 1 - victim
    assert statuses[victim] == -9 and statuses[survivor] == 2
    text = said[survivor].read_text()
    assert "Traceback" not in text
    (line,) = [one for one in text.splitlines() if one.startswith("marble: ")]
    assert "another process of the run is gone" in line
    assert "the last good checkpoint is" in line
    assert f"marble train --resume {tmp_path / 'run'}" in line
    status = json.loads((tmp_path / "run" / "run.json").read_text())
    assert status["status"] == "failed" and status["step"] >= 1


@pytest.mark.slow
def test_three_processes_are_one(run):
    assert_same(run("one", 1), run("three", 3))


@pytest.mark.slow
def test_resumed_with_as_many_processes_is_bit_for_bit(recipe, tmp_path):
    """Every process goes on with its own random numbers: a reward draws them."""
    steps, now = "train.steps=3", "train.max_hours=1e-9"
    assert run_processes(2, recipe, tmp_path / "unbroken", steps) == [0, 0]
    assert run_processes(2, recipe, tmp_path / "run", steps, now) == [0, 0]
    assert len(rows(tmp_path / "run")) == 1
    later = "train.max_hours=null"
    assert run_processes(2, recipe, tmp_path / "run", later, resume=True) == [0, 0]
    assert_same_run(tmp_path / "unbroken", tmp_path / "run")
