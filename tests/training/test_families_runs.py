"""`marble train` on every family: killed and resumed, and its LoRA in stock diffusers."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
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
from PIL import Image
from safetensors.torch import load_file

from marble.models.build import stock_call
from marble.models.registry import families
from marble.recipe import load_recipe

FAMILIES = {family.__name__: family for family in families()}
PROMPTS = ["a cat", 'a sign that says "TEA"']
OPTIONS = {"Sana": "model.options.instruction=false"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("families"))


def prepared(name: str, folder: Path) -> list[str]:
    """Overrides that put the recipe on a tiny pipeline of this family."""
    model = FAMILIES[name].tiny(folder / "model")
    tokens = 256 if name == "Qwen" else 96
    return [
        f"model.path={model}",
        "model.resolution=32",
        f"model.max_sequence_length={tokens}",
        *([OPTIONS[name]] if name in OPTIONS else []),
        "train.steps=4",
        "rollout.sampler=euler",
        "optim.lr=0.02",
        "eval.every=0",
        "eval.at_start=false",
        "balance.every=2",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_killed_and_resumed_is_the_unbroken_run(name, world, tmp_path):
    overrides = prepared(name, tmp_path)
    calm, out, said = tmp_path / "calm", tmp_path / "run", tmp_path / "said"
    command = ["train", world, *overrides, "--device", "cpu", "--out"]
    process = start_cli(said, *command, calm)
    process.join(200)
    assert process.exitcode == 0, said.read_text()
    metrics = out / "metrics.jsonl"
    process = start_cli(said, *command, out)
    two = lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 2  # noqa: E731
    assert kill_at(process, 0.0, two), said.read_text()
    process = start_cli(said, "train", "--resume", out, "--device", "cpu")
    process.join(200)
    assert process.exitcode == 0, said.read_text()
    assert "resuming after step" in said.read_text()
    assert [row["step"] for row in rows(out)] == [1, 2, 3, 4]
    assert_same_run(calm, out)


def test_stopped_and_resumed_with_ragged_text(world, tmp_path):
    """Prompts of other lengths are new together after a resume; nothing may depend on that."""
    changes = [*prepared("Qwen", tmp_path), "train.steps=2", "log.samples_every=0"]
    stopped, _ = run_here(world, tmp_path / "run", *changes, "train.max_hours=1e-9")
    assert not stopped.finished
    config = tmp_path / "run" / "config.yaml"
    assert run_here(config, tmp_path / "run", "train.max_hours=null", resume=True)[0].finished
    assert run_here(world, tmp_path / "calm", *changes)[0].finished
    assert_same_run(tmp_path / "calm", tmp_path / "run")


OBJECTIVES = {
    "awm": [],
    "grpo": ["rollout.sampler=sde", "eval.sampler=euler"],
    "dpo": ["train.batch_size=4"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_objective_trains_every_family(name, world, tmp_path):
    """NFT is what the other tests train with."""
    changes = [*prepared(name, tmp_path), "train.steps=1", "log.samples_every=0"]
    changes.append(
        "rewards.drop=[noisy]"
    )  # the reverse of `red`: of one pair nothing would be left
    for objective, more in OBJECTIVES.items():
        out = tmp_path / objective
        outcome, _ = run_here(world, out, *changes, f"objective.name={objective}", *more)
        assert getattr(outcome, "finished", False), outcome
        assert math.isfinite(rows(out)[-1]["loss"])
        moved = load_file(next(out.glob("checkpoints/step-*/lora/*.safetensors")))
        assert any(v.abs().max() > 0 for k, v in moved.items() if "lora_B" in k)


STRANGER = """
import json, sys
import torch, diffusers
from diffusers.utils import logging
logging.set_verbosity_error()
for job in json.loads(sys.stdin.read()):
    kind = getattr(diffusers, job["pipeline"])
    pipe = kind.from_pretrained(job["model"], **dict.fromkeys(job["absent"]))
    pipe.set_progress_bar_config(disable=True)
    for lora in (None, job["lora"]):
        if lora is not None:
            pipe.load_lora_weights(lora)
        for i, prompt in enumerate(job["prompts"]):
            noise = torch.Generator().manual_seed(7 + i)
            picture = pipe(prompt=prompt, generator=noise, **job["call"])
            name = "base" if lora is None else "lora"
            picture.images[0].save(f"{job['out']}/{name}-{i}.png")
print("marble" in sys.modules)
"""


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path)).astype(int)


@pytest.mark.slow
def test_exported_loras_draw_the_same_in_stock_diffusers(world, tmp_path):
    """All families in one process that has never heard of marble."""
    jobs = []
    for name in FAMILIES:
        folder = tmp_path / name
        run = folder / "run"
        folder.mkdir()
        process = spawn(run_to_end, str(world), str(run), prepared(name, folder))
        process.join(200)
        assert process.exitcode == 0
        lora = run / "checkpoints" / "step-000004" / "lora"
        pipeline, call = stock_call(load_recipe(str(run / "config.yaml")))
        said = folder / "said"
        words = ["sample", lora, *PROMPTS, "--recipe", run / "config.yaml"]  # not the run's best
        words += ["--seed", 7, "--device", "cpu", "--out", folder / "ours"]
        process = start_cli(said, *words)
        process.join(200)
        assert process.exitcode == 0, said.read_text()
        optional = FAMILIES[name].adapter.optional_parts
        absent = [part for part in optional if not (folder / "model" / part).is_dir()]
        jobs.append(
            {"pipeline": pipeline, "call": call, "model": str(folder / "model"), "absent": absent,
             "lora": str(lora), "prompts": PROMPTS, "out": str(folder)}
        )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", STRANGER],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    for name in FAMILIES:
        ours = sorted((tmp_path / name / "ours").glob("*.png"))
        assert len(ours) == len(PROMPTS)
        for i, path in enumerate(ours):
            theirs = pixels(tmp_path / name / f"lora-{i}.png")
            assert abs(pixels(path) - theirs).max() <= 1, name
            assert abs(pixels(tmp_path / name / f"base-{i}.png") - theirs).max() > 1, name
