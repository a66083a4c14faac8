"""Time estimates: constants are the measured ones, and the arithmetic is that of the loop."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marble.cli import app
from marble.duration import (
    CPU_STUDIO,
    GPUS,
    H200_SD35M,
    REWARDS,
    estimate_time,
    find_gpu,
)
from marble.duration import H200_COMPILED as H200
from marble.recipe import load_recipe

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_gpu_constants_are_the_measured_ones():
    loop, gradients = result("sd35m_loop_h200"), result("sd35m_gradients")
    phases, setup = loop["phases"], loop["setup"]
    batch = setup["recipe"]["rollout"]["batch_size"]
    steps = setup["recipe"]["rollout"]["steps"]
    pairs = setup["samples_per_epoch"] * setup["timesteps_per_sample"]
    near = {"rel": 0.1}
    assert pytest.approx(phases["sample latents"]["seconds_median"] / batch / steps, **near) == (
        H200_SD35M.forward
    )
    assert pytest.approx(phases["decode pictures"]["seconds_median"] / batch, **near) == (
        H200_SD35M.decode
    )
    ordinary = gradients["times"]["ordinary"]["ms"] / 1000 / gradients["setup"]["batch"]
    assert ordinary == pytest.approx(H200_SD35M.pair, **near)
    slow = phases["optimiser step, ordinary"]["seconds_median"] / pairs
    assert slow == pytest.approx(H200_SD35M.checkpointed, **near)
    assert gradients["ratios"]["K=5"]["refresh / ordinary"] == pytest.approx(
        H200_SD35M.refresh, **near
    )
    for name, seconds in REWARDS.items():
        timed = phases[f"reward {name}, 8 pictures"]["seconds_median"] / 8
        assert timed == pytest.approx(seconds, **near), name


def micro_batch(found, part):
    """Milliseconds; files from before 2026-11-19 timed two."""
    row = found["parts"][part]["ours"]
    return row["ms"] / row.get("micro_batches", 2)


def test_compiled_constants_are_the_measured_ones():
    """`marble bench loop` of both recipes."""
    large, small = result("loop_sd35m_h200"), result("loop_sd35m_24gb_h200")
    parts, batch = large["parts"], large["setup"]["ours"]["batch"]
    ms = {name: row["ours"]["ms"] for name, row in parts.items() if "ours" in row}
    for part in ("kl", "plain"):
        ms[part] = micro_batch(large, part)
    near = {"rel": 0.02}
    drawn = 1000 * large["setup"]["ours"]["rollout_batch"]
    steps = large["setup"].get("timed_sampling_steps", large["setup"]["ours"]["sampling_steps"])
    assert ms["sampling"] / steps / drawn == pytest.approx(H200.forward, **near)
    assert ms["decoding"] / drawn == pytest.approx(H200.decode, **near)
    assert ms["kl"] / 1000 / batch == pytest.approx(H200.pair, **near)
    assert (ms["kl"] - ms["plain"]) / 1000 / batch == pytest.approx(H200.reference, **near)
    kept = micro_batch(small, "kl") / 1000 / small["setup"]["ours"]["batch"]
    assert kept == pytest.approx(H200.checkpointed, **near)
    recorded = parts["refresh"]["two"]["ms"] - parts["refresh"]["one"]["ms"]
    assert recorded / ms["plain"] == pytest.approx(H200.refresh, **near)


def test_cpu_constants_are_the_measured_ones():
    timed = result("train_cpu")
    pictures = timed["setup"]["images_per_epoch"]
    recipe = load_recipe("studio")
    profile = timed["profile"]["ordinary"]
    forward = profile["rollout"] / pictures / recipe.rollout.steps
    assert forward == pytest.approx(CPU_STUDIO.forward, rel=0.1)
    parts = ("train forward", "backward", "reference forward")
    pair = sum(profile[part] for part in parts) / pictures / recipe.timesteps_per_sample
    assert pair == pytest.approx(CPU_STUDIO.pair, rel=0.1)
    assert profile["decode"] / pictures == pytest.approx(CPU_STUDIO.decode, rel=0.1)


def test_the_measured_run_is_told_within_a_fifth():
    """The five steps that ran on the H200, from their own recipe."""
    timed = result("sd35m_loop_h200")
    recipe = load_recipe(
        "sd35m-5rewards-1gpu",
        [
            "model.compile=false",
            "objective.kl_every=1",
            "data.prompts_per_epoch=6",
            "data.images_per_prompt=4",
            "train.timesteps_fraction=0.160001",
        ],
    )
    found = estimate_time(recipe, GPUS["h200"])
    step = timed["phases"]["optimiser step, ordinary"]["seconds_median"]
    rollout = timed["phases"]["rollout with rewards"]["seconds_median"]
    assert sum(found.parts.values()) == pytest.approx(step + rollout, rel=0.2)


def test_a_kl_to_v_old_needs_no_pass_of_the_base():
    with_kl, without = (
        estimate_time(load_recipe("sd35m-5rewards", ["objective.name=awm", *words]), GPUS["h100"])
        for words in (["balance.target=full"], ["balance.target=full", "objective.kl=0"])
    )
    assert with_kl.step == without.step


def test_it_scales_as_the_work_does():
    def told(*overrides, gpu="h200", count=1):
        return estimate_time(load_recipe("sd35m-5rewards", list(overrides)), GPUS[gpu], count)

    one = told()
    days = one.total / 86400
    assert 7 < days < 12  # 1000 published steps on one card
    assert told(count=8).total == pytest.approx(one.total / 8, rel=0.01)
    assert told(gpu="a100").step == pytest.approx(one.step * 989 / 312, rel=0.25)
    half = told("train.timesteps_fraction=0.5")
    assert half.parts["training"] == pytest.approx(one.parts["training"] / 2, rel=0.05)
    assert half.parts["rollout"] == one.parts["rollout"]
    assert told("train.steps=2000", "eval.every=0").total > 1.9 * told("eval.every=0").total
    assert told("model.resolution=1024").step > 3 * one.step
    assert told("rewards.add=[{name: mine, reward: 'mine.py:f'}]").unknown[0] == "mine"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("rtx 3090", "rtx3090"),
    ],
)
def test_cards_are_found_by_any_of_their_names(name, key):
    assert find_gpu(name) is GPUS[key]


def test_doctor_tells_hours_for_a_named_card():
    def lines(*words):
        found = CliRunner().invoke(app, ["doctor", *words, "--json"])
        checks = json.loads(found.output)["checks"]
        return {check["what"]: check for check in checks}

    four = lines("sd35m-5rewards", "--gpu", "a100", "--gpus", "4")
    assert (
        "per step" in four["time"]["found"] and "days in all on 4 × A100" in four["time"]["found"]
    )
    assert four["memory"]["ok"] and "80 GB on each A100" in four["memory"]["found"]
    assert four["device"]["ok"]
    small = lines("sd35m-5rewards", "--gpu", "rtx4090")
    assert not small["memory"]["ok"] and "to lower it" in small["memory"]["remedy"]
    here = lines("studio")["time"]["found"]
    assert "CPU cores" in here or "×" in here or "not known here" in here
    assert find_gpu("abacus") is None
    wrong = CliRunner().invoke(app, ["doctor", "--gpu", "abacus"])
    assert wrong.exit_code != 0 and "rtx4090" in str(wrong.exception)
