"""The commands of README.md, run in the order in which it gives them.

What needs a GPU and a download there runs here on tiny random checkpoints of the same architecture
and file layout; the words of the command stay, and overrides make it small.
"""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SHORT = [
    "train.steps=2",
    "train.checkpoint_every=1",
    "data.prompts_per_epoch=3",
    "data.images_per_prompt=2",
    "rollout.steps=4",
    "eval.prompts=1",
    "log.samples_every=0",
]


def section(title: str) -> str:
    return README.split(f"## {title}")[1].split("\n## ")[0]


def commands(text: str) -> list[list[str]]:
    bodies = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    lines = [line.split("  #")[0].strip() for body in bodies for line in body.splitlines()]
    return [shlex.split(line) for line in lines if line]


def run(words: list[str], cwd: Path, statuses: tuple[int, ...] = (0,)) -> str:
    """`marble` and `accelerate` are those of this environment, wherever it lies."""
    modules = {"marble": "marble", "accelerate": "accelerate.commands.accelerate_cli"}
    if words[0] in modules:
        words = [sys.executable, "-m", modules[words[0]], *words[1:]]
    elif words[0] == "python":
        words = [sys.executable, *words[1:]]
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (
        f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def alternatives(recipe: str) -> list[str]:
    """The recipe with each of its commented lines in place of the line that adds the reward."""
    [added] = re.findall(r"^  add: .*$", recipe, re.M)
    told = re.findall(r"^  # [a-z ]+: ((?:add|train): .*)$", recipe, re.M)
    return [recipe.replace(added, f"  {line}") for line in told]


@pytest.mark.slow
def test_a_reward_of_ones_own(tmp_path):
    text = section("Add a reward of your own")
    for body in re.findall(r"^```(?:python|yaml)\n(.*?)^```", text, re.M | re.S):
        (tmp_path / body.split("\n")[0].removeprefix("# ")).write_text(body)
    for words in commands(text):
        run([*words, *(SHORT if words[1] == "train" else [])], tmp_path)
    assert (tmp_path / "compare.html").stat().st_size > 10_000
    last = json.loads((tmp_path / "runs/warm/metrics.jsonl").read_text().splitlines()[-1])
    assert last["alpha/warmth"] > 0 and "reward/warmth/mean" in last
    evals = (tmp_path / "runs/warm/evals.jsonl").read_text().splitlines()
    assert all("warmth" in json.loads(line)["rewards"] for line in evals)
    restricted, instead = alternatives((tmp_path / "warm.yaml").read_text())
    for name, recipe in {"restricted": restricted, "instead": instead}.items():
        (tmp_path / f"{name}.yaml").write_text(recipe)
        run(["marble", "train", f"{name}.yaml", "--out", f"runs/{name}", *SHORT], tmp_path)
    last = json.loads((tmp_path / "runs/restricted/metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["reward/warmth/applicable"] < 1
    last = json.loads((tmp_path / "runs/instead/metrics.jsonl").read_text().splitlines()[-1])
    assert {key for key in last if key.startswith("alpha/")} == {
        "alpha/studio-pick",
        "alpha/warmth",
    }


@pytest.fixture
def sd35(tmp_path, monkeypatch):
    """Overrides that point a recipe at tiny checkpoints of SD3.5 Medium and its rewards."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("sd35m_folders")
    cpu = torch.device("cpu")
    module.write_pipeline(tmp_path / "sd35m", cpu, tiny=True, full_t5=False)
    return [
        f"model.path={tmp_path / 'sd35m'}",
        *module.write_rewards(tmp_path / "rewards", cpu, tiny=True),
        *module.write_prompts(tmp_path / "prompts", 8),
        "model.resolution=64",
        "model.max_sequence_length=16",
        "rewards.geneval.options.short_side=64",
        "rewards.geneval-strict.options.short_side=64",
        "train.timesteps_fraction=0.25",
        *SHORT,
    ]


@pytest.mark.slow
def test_stable_diffusion(tmp_path, sd35):
    told = {
        words[1] if words[0] != "accelerate" else "launch": words
        for words in commands(section("Train Stable Diffusion 3.5 Medium"))
        if words[0] != "pip" and "--resume" not in words
    }
    assert set(told) == {"doctor", "train", "launch", "report"}
    # Status 1: there may be no GPU here. Everything else is in its place.
    assert "missing" not in run([*told["doctor"], *sd35], tmp_path, (0, 1))
    run([*told["train"], *sd35], tmp_path)
    [resume] = [w for w in commands(section("Train Stable")) if "--resume" in w]
    run([*resume, "train.steps=3"], tmp_path)
    rows = (tmp_path / "runs/five/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows][-1] == len(rows) == 3
    run(told["report"], tmp_path)
    assert (tmp_path / "runs/five/report.html").stat().st_size > 10_000
    # On a CPU accelerate starts one process, whatever it is told.
    launch = told["launch"]
    launch = [
        *launch[: launch.index("--num_processes")],
        "--cpu",
        "--num_processes",
        "1",
        *launch[launch.index("-m") :],
    ]
    run([*launch, *sd35, "rewards.heldout=[]", "--out", "runs/many"], tmp_path)
    assert (tmp_path / "runs/many/metrics.jsonl").is_file()


@pytest.mark.slow
def test_the_rest_of_the_commands(tmp_path):
    """Not here: `make train` and `make test`, which are run on a fresh clone."""
    rest = [w for w in commands(README) if w[0] != "pip" and "sd35m" not in " ".join(w)]
    rest = [w for w in rest if not any(word.startswith("runs/") for word in w)]
    assert [w for w in rest if w[0] == "make"] == [["make", "train"], ["make", "test"]]
    for words in rest:
        if words[0] == "python":
            run([words[0], str(ROOT / words[1]), *words[2:]], tmp_path)
        elif words[:2] == ["marble", "bench"]:
            small = ["--k", "3", "--repeats", "1"] if words[2] == "gradients" else []
            run([*words, *small], tmp_path)
        else:
            assert words[0] == "make", words
