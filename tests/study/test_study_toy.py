"""The toy world: its base is exact, its rewards are what they say, and studies run on it."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from _command import marble  # noqa: F401  (a fixture)
from _toy_world import RECIPE, run_toy
from marble.study.measure import measure
from marble.study.toy import world
from marble.study.toy.model import SPREAD, UNDERSHOOT, ToyAdapter


def test_numbers_survive_as_pictures():
    x = torch.linspace(-4, 4, 48).view(4, 12)
    np.testing.assert_allclose(world.numbers(world.to_pictures(x)), x, atol=4 / 255 + 1e-6)
    assert world.to_pictures(10 * x).shape == (4, 3, 2, 2)  # beyond the reach: clipped


def test_targets_belong_to_prompts_and_splits_differ():
    np.testing.assert_array_equal(world.target("train text 1"), world.target("train text 1"))
    assert np.abs(world.target("train text 1") - world.target("test text 1")).max() > 0.1
    several = np.array([world.target(f"train general {i}") for i in range(400)])
    assert np.linalg.matrix_rank(several) == world.EMBEDDING  # learned on some, good for others


def test_rewards_at_the_target():
    prompts = [f"train general {i}" for i in range(50)]
    images = world.to_pictures(torch.tensor(np.stack([world.target(p) for p in prompts])))
    call = (images, prompts, [{}] * 50)
    assert world.similarity(*call).min() > 0.99
    assert (world.counting(*call) == 1).all() and (world.strict(*call) == 1).all()
    assert world.reading(*call).min() > 0.99
    gaudy = images.clone()
    gaudy.flatten(1)[:, 8:12] = 255
    more = (gaudy, prompts, [{}] * 50)
    assert (world.vivid(*more) > world.vivid(*call)).all()
    assert (world.preference(*more) < world.preference(*call)).all()
    assert world.tame(*more).mean() < world.tame(*call).mean()


def test_the_base_draws_its_gaussian():
    """The velocity is exact, so many Euler steps give the mean and the spread asked for."""
    adapter = ToyAdapter()
    n, prompt = 3000, "train general 0"
    cond = adapter.encode([prompt] * n)
    x = adapter.sample(cond, range(n), steps=100, sampler="euler").numpy()
    np.testing.assert_allclose(x.mean(0), UNDERSHOOT * world.target(prompt), atol=0.05)
    np.testing.assert_allclose(x.std(0), SPREAD, atol=0.05)


def run(folder, *overrides, resume=False):
    words = ["train.steps=4", "train.checkpoint_every=2", *overrides]
    return run_toy(folder, *words, resume=resume)


def test_a_run_in_the_toy_world_can_be_measured(tmp_path):
    run(tmp_path / "run", "balance.method=marble", "balance.every=2", "balance.heldout_half=true")
    found = measure(tmp_path / "run", judge=("reading", "counting"))
    assert found.judged == ["reading", "counting"] and found.heldout == ["strict", "tame"]
    assert all(np.isfinite(found.values[k]) for k in ("worst gain", "conflict, other half"))
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert rows[0]["reward/reading/applicable"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_a_study_from_the_command_line(tmp_path):
    """Two jobs, one cell that fails: a table of the rest, one line, status 2."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"trainer: toy\nrecipe: {RECIPE}\nseeds: [0, 1]\n"
        "common: {train.steps: 2, train.checkpoint_every: 1}\n"
        "cells: {uniform: {balance.method: uniform}, progress: {balance.method: progress},\n"
        "  broken: {rewards.vivid.reward: 'marble.study.toy.world:missing'}}"
    )
    command = [sys.executable, "-m", "marble", "study", str(file), "--jobs", "2"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "2 of 6 runs are not finished, 2 failed" in done.stderr.splitlines()[-1]
    assert "has no 'missing'" in done.stderr
    table = json.loads((tmp_path / "out/table.json").read_text())
    assert [row["name"] for row in table["settings"][0]["rows"]] == ["base", "uniform", "progress"]
    assert (tmp_path / "out/report.html").is_file()


def test_a_table_without_running(marble, tmp_path):  # noqa: F811
    """Of what is there, though cells are missing; nothing is run, and nothing is wrong."""
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(f"trainer: toy\nrecipe: {RECIPE}\nseeds: [0, 1]\ncells: {{a: {{}}, b: {{}}}}")
    done = marble("study", file, "--no-run", "--out", out)
    assert done.status == 2 and done.err.strip().count("\n") == 0 and "no such folder" in done.err
    run(out / "a-seed0")
    done = marble("study", file, "--no-run", "--no-page", "--out", out)
    assert done.status == 0
    table = json.loads((out / "table.json").read_text())
    assert [row["name"] for row in table["settings"][0]["rows"]] == ["base", "a"]
    assert len(table["missing"]) == 3 and not (out / "b-seed0").exists()
