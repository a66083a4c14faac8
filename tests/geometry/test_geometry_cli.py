"""The command on a tiny run: what it prints, what it writes, what it leaves alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from marble.geometry.folder import open_run
from marble.geometry.gradients import _batch_seed, collect
from marble.training import setup
from marble.training.loop import Trainer
from marble.training.processes import Processes

NAMES = ["red", "blue", "dark"]


def test_a_table_and_the_same_numbers_in_a_file(marble, trained, tmp_path):
    out = tmp_path / "new" / "geometry.json"
    result = marble("geometry", trained, "--batches", 5, "--device", "cpu", "--out", out)
    assert result.status == 0, result.err
    for word in (*NAMES, "share of signal", "worst cosine", "Adam's √v̂", "upgrad", str(out)):
        assert word in result.out
    record = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert record["step"] == 2 and record["settings"]["batches"] == 5
    assert list(record["signal"]["adam"]) == NAMES
    assert {"uniform", "weighted sum", "as trained", "marble", "mgda", "upgrad"} <= set(
        record["rules"]
    )
    used = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    expected = {name: np.mean([row[f"coefficient/{name}"] for row in used]) for name in NAMES}
    assert record["settings"]["as_trained"] == pytest.approx(expected)
    uniform = record["rules"]["uniform"]["averaged"]
    assert list(uniform) == ["1", "2", "4"]
    assert uniform["1"]["alpha"]["mean"] == pytest.approx(dict.fromkeys(NAMES, 1 / 3))
    again = marble("geometry", trained, "--batches", 5, "--device", "cpu", "--json")
    assert json.loads(again.out) == record


def test_help_has_examples(marble):
    result = marble("geometry", "--help")
    assert result.status == 0 and "Examples" in result.out and "marble geometry runs/" in result.out


def test_a_figure_of_base_and_trained(marble, trained, tmp_path):
    pytest.importorskip("matplotlib")
    files = [tmp_path / "base.json", tmp_path / "trained.json"]
    for file, words in zip(files, (["--base"], [])):
        assert marble("geometry", trained, *words, "--batches", 4, "--out", file).status == 0
    script = Path(__file__).parents[2] / "scripts" / "geometry_figure.py"
    words = [sys.executable, script, *files, "--out", tmp_path / "new" / "figure.png"]
    subprocess.run(words, check=True, capture_output=True)
    with Image.open(tmp_path / "new" / "figure.png") as picture:
        assert min(picture.size) > 800


def test_the_base_has_no_adam(marble, trained):
    record = json.loads(
        marble("geometry", trained, "--base", "--batches", 4, "--target", "reward", "--json").out
    )
    assert record["base"] and record["step"] == 0 and record["settings"]["target"] == "reward"
    assert set(record["signal"]) == {"plain"}
    assert "adam" not in record["rules"]["marble"]["averaged"]["1"]


def test_what_is_no_run_is_told_in_one_line(marble, trained, tmp_path):
    for folder, word in ((tmp_path / "none", "no such folder"), (tmp_path, "no config.yaml")):
        result = marble("geometry", folder)
        assert result.status == 2 and word in result.err and "Traceback" not in result.err
    (tmp_path / "config.yaml").write_text((trained / "config.yaml").read_text())
    result = marble("geometry", tmp_path)
    assert result.status == 2 and "no complete checkpoint" in result.err and "--base" in result.err
    assert marble("geometry", trained, "--target", "whole").status == 2


def test_batches_are_repeatable_and_independent(trained):
    place = open_run(trained)
    found, same, other = (collect(place, batches=2, seed=s, device="cpu") for s in (3, 3, 4))
    assert torch.equal(found.rows_BRT, same.rows_BRT)
    assert not torch.allclose(found.rows_BRT[0], found.rows_BRT[1])
    assert not torch.allclose(found.rows_BRT[0], other.rows_BRT[0])
    assert found.valid_BK.all() and found.rows_BRT.isfinite().all()


def test_a_gradient_is_its_rewards_part_and_the_common_pull(trained):
    place = open_run(trained)
    full, part = (
        collect(place, batches=1, device="cpu", target=target) for target in ("full", "reward")
    )
    pull = (full.rows_BRT - part.rows_BRT)[0]
    for everywhere in (0, 2):  # blue applies to some samples only, and has a pull of its own
        assert torch.allclose(pull[everywhere], part.rows_BRT[0, -1], atol=1e-6)


def test_gradients_are_those_that_training_takes(toy, tmp_path):
    """A trainer with a batch's seed, at the same weights, finds the same gradient."""
    words = ["balance.method=uniform", "balance.target=full", "objective.kl=0"]
    recipe = toy.recipe(*words, "optim.grad_clip=1e9")
    (tmp_path / "config.yaml").write_text(recipe.dump())
    found = collect(open_run(tmp_path, base=True), batches=1, seed=7, device="cpu")
    own = setup.build(recipe, Processes("cpu").device)
    parts = setup.build(
        toy.recipe(*words, f"train.seed={_batch_seed(7, 0)}"),
        Processes("cpu").device,
    )
    for name in ("default", "old"):
        parts.adapter.load_lora_state(name, own.adapter.lora_state())
    trainer = Trainer(recipe.model_copy(update={"train": _seeded(recipe)}), parts, Processes("cpu"))
    [row] = trainer.run_epoch()
    trainer.close()
    assert row["grad_norm/update"] == pytest.approx(float(found.rows_BRT[0, :3].mean(0).norm()))


def _seeded(recipe):
    return recipe.train.model_copy(update={"seed": _batch_seed(7, 0)})


def test_measuring_leaves_the_run_as_it_was(trained):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    collect(open_run(trained), batches=1, device="cpu")
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
