"""A run whose newest checkpoint is damaged: which one is used instead, and why, is said."""

import json
import shutil

import pytest
from rich.console import Console

from marble.training.run import train


@pytest.fixture(scope="module")
def two(toy, tmp_path_factory):
    """A run with checkpoints of its first and its second step."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    recipe = toy.recipe("train.checkpoint_every=1")
    train(recipe, folder, device="cpu", console=Console(quiet=True))
    assert len(list((folder / "checkpoints").glob("step-*"))) == 2
    return folder


@pytest.fixture
def damaged(two, tmp_path):
    run = shutil.copytree(two, tmp_path / "run")
    (run / "checkpoints/step-000002/state/ema.safetensors").write_bytes(b"")
    return run


def test_eval_says_which_and_why(marble, two, damaged):
    whole = json.loads(marble("eval", two, "--json").out)
    assert whole["step"] == 2 and whole["passed_over"] == {}
    result = marble("eval", damaged, "--json")
    assert result.status == 0
    record = json.loads(result.out)
    assert record["step"] == 1
    assert record["passed_over"] == {
        "step-000002": "state/ema.safetensors is damaged (checksum differs)"
    }
    assert "step-000002 is passed over (state/ema.safetensors is damaged" in result.err
    assert "using step 1" in result.err
    assert "step-000001: held-out prompts" in marble("eval", damaged).out
    assert json.loads(marble("eval", "base", "--recipe", damaged, "--json").out)["step"] is None


def test_sample_and_geometry_say_it_too(marble, damaged, tmp_path):
    result = marble("sample", damaged, "a cat", "-o", tmp_path / "out", "--json")
    assert "step-000002 is passed over" in result.err and json.loads(result.out)["step"] == 1
    result = marble("geometry", damaged, "--batches", 4, "--json")
    assert "step-000002 is passed over" in result.err
    assert json.loads(result.out)["passed_over"].keys() == {"step-000002"}
    assert (damaged / "checkpoints/step-000002").is_dir()  # only a resume moves it aside
