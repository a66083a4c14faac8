"""`marble bench loop`: the public loop and ours; what is measured, and what is made of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from marble.bench import compose, loop
from marble.bench import errors as bench_errors
from marble.bench.compose import Counts
from marble.bench.errors import gradient_errors
from marble.bench.loop import bench_loop
from marble.bench.random_model import open_pipeline
from marble.bench.report import Report
from marble.cli import app
from marble.cli.bench_tables import show_loop
from marble.errors import MarbleError
from marble.models.quiet import quiet
from marble.models.registry import families

PARTS = {"sampling": 10.0, "decoding": 5.0, "plain": 7.0, "kl": 9.0, "recorded": 20.0}
PARTS |= {"solve": 3.0, "update": 1.0, "merge": 2.0}


@pytest.fixture(scope="module")
def measured(toy, tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "loop.json"
    changes = ["objective.kl=0.01", "objective.kl_every=2", "balance.probe=0.5"]
    return bench_loop(str(toy.recipe_file), changes, device="cpu", repeats=1, out=out), out


def test_every_part_is_measured_and_written(measured):
    found, out = measured
    assert found["complete"] and not found["failures"]
    assert json.loads(out.read_text()) == found
    for part in ("sampling", "decoding", "kl", "plain", "update"):
        assert set(found["parts"][part]) == {"public", "ours"}
        assert all(row["ms"] > 0 for row in found["parts"][part].values())
    assert {"date", "device", "versions", "setup", "limit"} <= set(found)
    assert set(found["ratios"]) >= set(found["targets"])
    for name, row in found["use_of_device"].items():
        assert row["tflops"] > 0 and 0 < row["share_of_limit"] < 10, name


def test_gradients_of_both_loops_agree(measured):
    """In fp32 on a CPU: the same function, however it is split or recorded."""
    errors = measured[0]["gradient_errors"]
    slow = ("slow, another batch split", "slow, another loss scale")
    for name in (*slow, "fast", "fast, recorded"):
        assert errors[name] < 1e-4, name
    for name in ("slow", "fast", "fast, recorded"):
        assert errors[f"{name}, from fp32"] < 1e-4, name


def test_splits_that_do_not_fit_are_left_out(toy, monkeypatch):
    bench = loop.Bench(
        toy.recipe("train.batch_size=20"), torch.device("cpu"), 1, Report(None, print)
    )
    slow = bench_errors._slow

    def limited(side, count, split, scale=1.0):
        if split > 18:
            raise torch.OutOfMemoryError
        return slow(side, count, split, scale)

    monkeypatch.setattr(bench_errors, "_slow", limited)
    found = gradient_errors(bench.public, bench.ours)
    assert found["split"] == 9 and set(found["errors of other splits"]) == {"3", "6", "18"}


def test_in_bf16_our_gradient_is_no_farther_than_another_split(toy):
    """Where blocks are not compiled and v_old's LoRA is not merged, forward passes are the same bit
    for bit; a refresh rounds as another loss scale does."""
    recipe = toy.recipe("train.precision=bf16", "train.batch_size=9")
    bench = loop.Bench(recipe, torch.device("cpu"), 1, Report(None, print))
    errors = gradient_errors(bench.public, bench.ours)
    split, scale = errors["slow, another batch split"], errors["slow, another loss scale"]
    assert 1e-4 < split < 0.02 and 1e-4 < scale < 0.02
    assert errors["fast"] <= split / 10
    assert errors["fast, recorded"] <= 2 * scale


def test_a_quick_run_is_of_our_loop_alone(toy, capsys):
    found = bench_loop(str(toy.recipe_file), [], device="cpu", repeats=1, quick=True)
    assert found["complete"]
    assert not {"gradient_errors", "host_waits"} & set(found)
    assert set(found["steps"]) == {
        "ours, weighted sum", "ours, MARBLE N = 10", "ours, MARBLE N = 1"
    }  # fmt: skip
    assert found["ratios"]["refresh by ordinary step, training"] > 0
    show_loop(found)
    assert "our loop" in capsys.readouterr().out


def test_a_part_that_fails_is_told_and_the_rest_is_measured(toy, monkeypatch):
    def broken(self):
        raise RuntimeError("no room")

    monkeypatch.setattr(loop.Bench, "_training", broken)
    for part in ("_rollouts", "_refresh", "_waits", "_recorded", "_from_fp32"):
        monkeypatch.setattr(loop.Bench, part, lambda *_: {})
    monkeypatch.setattr(loop, "gradient_errors", lambda *_: {"fast": 1.0})
    found = bench_loop(str(toy.recipe_file), [], device="cpu", repeats=1)
    assert not found["complete"]
    assert found["failures"]["training"][0] == "RuntimeError: no room"
    assert found["gradient_errors"] == {"fast": 1.0}  # which comes later
    show_loop(found)


def test_the_command_prints_a_table_and_writes_the_file(measured, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "bench_loop", lambda *args, **options: measured[0])
    done = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["bench", "loop", "studio"])
    assert done.exit_code == 0, done.output
    speed = measured[0]["steps"]["ours, MARBLE N = 10"]["pictures_per_gpu_second"]
    assert f" {speed:.2f} " in done.stdout and "≥ 0.995" in done.stdout


def test_a_memory_limit_needs_a_gpu(toy):
    with pytest.raises(MarbleError, match="--memory-limit: is for a GPU"):
        bench_loop(str(toy.recipe_file), [], device="cpu", memory_limit=24)


def test_a_model_of_unknown_size_is_refused(toy):
    with pytest.raises(MarbleError, match="size is not known"):
        open_pipeline(toy.recipe("model.path=someone/else"), torch.device("cpu"))


@pytest.mark.parametrize(
    "family",
    [f if f.pipeline == "QwenImagePipeline" else pytest.param(f, marks=pytest.mark.slow)
     for f in families() if f.rest],
    ids=lambda f: f.pipeline,
)  # fmt: skip
def test_random_models_of_every_family_are_trained(toy, family, tmp_path, monkeypatch):
    """A model that is not here: of its published size, which is a tiny one for this test."""
    with quiet():
        family.tiny(tmp_path / "tiny")

    def config(name):
        read = json.loads((tmp_path / "tiny" / f"{name}.json").read_text())
        return {key: value for key, value in read.items() if key[0] != "_"}

    hub_id = next(iter(family.published))
    tiny = replace(family.published[hub_id], transformer=config("transformer/config"))
    monkeypatch.setattr(family, "published", {hub_id: tiny})
    rest = replace(
        family.rest,
        vae_config=config("vae/config"),
        scheduler=config("scheduler/scheduler_config"),
    )
    monkeypatch.setattr(family, "rest", rest)
    recipe = toy.recipe(
        f"model.path={hub_id}", "model.max_sequence_length=null", "model.resolution=32"
    )
    report = loop.Report(None, lambda text: None)
    bench = loop.Bench(recipe, torch.device("cpu"), 1, report)
    bench._rollouts()
    bench._refresh()
    assert gradient_errors(bench.public, bench.ours)["fast"] < 1e-4
    shared = bench.ours.adapter.transformer.state_dict()
    theirs = bench.public.adapter.transformer.state_dict()
    same = [k for k, v in theirs.items() if k in shared and v.data_ptr() == shared[k].data_ptr()]
    assert len(same) > len(theirs) / 4  # the weights of both are the same memory


def test_a_step_is_the_sum_of_its_calls():
    """72 pictures in batches of 10 and 9: eight batches each, the last of the rollout short."""
    counts = Counts(72, 25, 10, 24, 9, kl_every=8, recorded=0.125)
    assert counts.micro_batches == 192 and counts.recorded_of() == 24
    ordinary = compose.step(PARTS, counts, refresh=False)
    assert ordinary["sampling"] == 8 * 25 * 10 + 2
    assert ordinary["decoding"] == 8 * 5
    assert ordinary["training"] == 24 * 9 + 168 * 7
    refresh = compose.step(PARTS, counts, refresh=True)
    assert refresh["recorded"] == 24 * 20 and refresh["solve"] == 3
    assert refresh["training"] == 21 * 9 + 147 * 7
    mean = compose.mean_step(ordinary, refresh, 10)
    assert sum(mean.values()) == pytest.approx(
        0.9 * sum(ordinary.values()) + 0.1 * sum(refresh.values())
    )
    assert compose.training_of(ordinary) == ordinary["training"] + 1
    speed = compose.speed({"sampling": 500.0, "training": 1500.0}, 8, 0.25)
    assert speed["pictures_per_gpu_second"] == 4
    assert speed["pictures_per_gpu_second_with_rewards"] == 2


def test_the_chart_shows_all_of_a_step(measured, monkeypatch, tmp_path):
    scripts = Path(__file__).parents[2] / "scripts"
    monkeypatch.syspath_prepend(str(scripts))
    import loop_figure

    for label, parts in loop_figure.slices(measured[0]).items():
        name = next(k for k, v in loop_figure.BARS.items() if v == label)
        whole = sum(measured[0]["steps"][name]["ms_per_picture"].values())
        assert sum(parts.values()) == pytest.approx(whole), label
        assert min(parts.values()) >= 0
    figure = loop_figure.draw(measured[0])
    figure.savefig(tmp_path / "loop.png")
    assert (tmp_path / "loop.png").stat().st_size > 5000
