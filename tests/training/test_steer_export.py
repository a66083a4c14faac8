"""A steered run's sliders: in `marble sample`, in `marble merge`, and where marble is unknown."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from marble.cli import app
from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.sampling import draw_prompts
from marble.training.run import train

PROMPTS = ["a cat", 'a sign that says "TEA"']
PREFER = {"red": 2.0, "dark": 0.25}

STRANGER = """
import sys, torch
from diffusers import StableDiffusion3Pipeline
model, lora, out = sys.argv[1:]
pipe = StableDiffusion3Pipeline.from_pretrained(model, text_encoder_3=None, tokenizer_3=None)
pipe.set_progress_bar_config(disable=True)
CARD
for i, prompt in enumerate(PROMPTS):
    seeded = torch.Generator().manual_seed(7 + i)
    pipe(prompt, num_inference_steps=3, guidance_scale=1.0, max_sequence_length=2,
         generator=seeded).images[0].save(f"{out}/{i}.png")
assert "marble" not in sys.modules
"""


@pytest.fixture(scope="module")
def run(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "steered"
    words = ["balance.method=steer", "model.lora={rank: 6, alpha: 12}"]
    recipe = toy.recipe("optim.lr=0.1", "train.steps=3", "train.probe=8", *words)
    train(recipe, folder, device="cpu", console=Console(quiet=True))
    return folder


@pytest.fixture(scope="module")
def lora(run):
    best = json.loads((run / "checkpoints" / "best").read_text())
    return run / "checkpoints" / best["folder"] / "lora"


def pictures(folder):
    paths = sorted(folder.glob("*.png"))
    return np.stack([np.asarray(Image.open(p)).astype(int) for p in paths])


@pytest.fixture(scope="module")
def ours(run, lora, tmp_path_factory):
    out = tmp_path_factory.mktemp("ours")
    recipe = load_recipe(str(run / "config.yaml"))
    for name, prefer in (("preferred", PREFER), ("default", None)):
        draw_prompts(recipe, lora, PROMPTS, out / name, seed=7, device="cpu", prefer=prefer)
    assert abs(pictures(out / "preferred") - pictures(out / "default")).max() > 2
    return out


def test_the_cards_lines_draw_the_same_in_a_process_without_marble(toy, lora, ours, tmp_path):
    """The model card's own code, with other weights, in stock diffusers: ±1 level."""
    card = (lora / "README.md").read_text().partition("## Sliders")[2]
    code = card.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) == 4  # names; the loop over them; the weights
    code = code.replace('"path/to/this/folder/sliders"', 'lora + "/sliders"')
    code, count = re.subn(r"names, \[.*\]\)", "names, [1.0, 2.0, 1.0, 0.25])", code)
    assert count == 1
    script = f"PROMPTS = {PROMPTS!r}\n" + STRANGER.replace("CARD", code)
    done = subprocess.run(
        [sys.executable, "-c", script, str(toy.folder / "model"), str(lora), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert abs(pictures(tmp_path) - pictures(ours / "preferred")).max() <= 1
    assert abs(pictures(tmp_path) - pictures(ours / "default")).max() > 2


def test_the_command_and_the_merged_lora_draw_it_too(toy, run, ours, tmp_path):
    say = CliRunner()
    words = ["--prefer", "red=2,dark=0.25"]
    draw = ["--seed", "7", "--device", "cpu", "--trust"]
    done = say.invoke(app, ["sample", str(run), *PROMPTS, *words, *draw, "-o", f"{tmp_path}/a"])
    assert done.exit_code == 0, done.output
    assert ", red 2, dark 0.25\n" in done.output
    assert np.array_equal(pictures(tmp_path / "a"), pictures(ours / "preferred"))
    done = say.invoke(app, ["merge", str(run), *words, "--trust", "-o", f"{tmp_path}/lora"])
    assert done.exit_code == 0 and "(rank 6)" in done.output
    again = say.invoke(app, ["merge", str(run), *words, "--trust", "--json", "-o", f"{tmp_path}/c"])
    assert json.loads(again.output)["prefer"] == {"red": 2.0, "dark": 0.25}
    assert [p.name for p in (tmp_path / "lora").iterdir()] == ["pytorch_lora_weights.safetensors"]
    recipe = load_recipe(str(run / "config.yaml"))
    draw_prompts(recipe, tmp_path / "lora", PROMPTS, tmp_path / "b", seed=7, device="cpu")
    assert abs(pictures(tmp_path / "b") - pictures(ours / "preferred")).max() <= 1


def test_the_run_ends_with_pictures_at_every_setting(run, lora, tmp_path):
    """Those of `marble sample` at these weights, of prompts and seeds of the probe."""
    index = json.loads((run / "front" / "index.json").read_text())
    assert index["names"] == ["red", "blue", "dark"] and index["top"] == 2
    settings = {one["label"]: one for one in index["settings"]}
    assert list(settings) == [
        "default", "red", "blue", "dark", "red + blue", "red + dark", "blue + dark",
        "no red", "no blue", "no dark",
    ]  # fmt: skip
    assert settings["red"]["weights"] == [2.0, 0.5, 0.5]
    assert settings["no blue"]["weights"] == [1.0, 0.0, 1.0]
    assert all(len(one["gains"]) == 3 and one["diversity"] > 0 for one in settings.values())
    assert settings["red"]["gains"] != settings["default"]["gains"]
    assert str(index["step"]) in lora.parent.name
    recipe = load_recipe(str(run / "config.yaml"))
    prefer = {"red": 2.0, "blue": 0.5, "dark": 0.5}
    for i, sample in enumerate(index["samples"]):
        (file,) = draw_prompts(
            recipe,
            lora,
            [sample["prompt"]],
            tmp_path / str(i),
            seed=sample["seed"],
            device="cpu",
            prefer=prefer,
        )
        kept = run / "front" / settings["red"]["files"][i]
        ours, theirs = (np.asarray(Image.open(p)).astype(int) for p in (file, kept))
        assert abs(ours - theirs).max() <= 1


def test_merging_a_run_with_itself_changes_nothing(run, ours, tmp_path):
    words = ["merge", str(run), str(run), "--weights", "0.3,0.7", "--json", "--trust"]
    done = CliRunner().invoke(app, [*words, "-o", f"{tmp_path}/lora"])
    record = json.loads(done.output)
    assert done.exit_code == 0 and record["rank"] == 12 and "prefer" not in record
    recipe = load_recipe(str(run / "config.yaml"))
    draw_prompts(recipe, tmp_path / "lora", PROMPTS, tmp_path / "b", seed=7, device="cpu")
    assert abs(pictures(tmp_path / "b") - pictures(ours / "default")).max() <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sample", "base", "a cat", "--prefer", "red=2"], "the base has no sliders"),
        (["sample", "RUN", "a cat", "--prefer", "green=2"], "there is no slider 'green'"),
        (["sample", "RUN", "a cat", "--prefer", "red=9"], "trained from 0 to 2"),
        (["sample", "RUN", "a cat", "--prefer", "red"], "must be like ocr=1.5"),
        (["sample", "RUN", "a cat", "--prefer", "red=1,red=0"], "red has two weights"),
        (["eval", "RUN", "--prefer", "red=9", "--out", "pictures"], "trained from 0 to 2"),
        (["merge", "RUN", "--prefer", "red=9"], "trained from 0 to 2"),
        (["eval", "RUN", "--prefer", "green=2"], "there is no slider 'green'"),
        (["merge", "RUN", "RUN", "--prefer", "red=2"], "--prefer is for one steered run"),
        (["merge", "RUN", "--weights", "1,2"], "1,2: give one weight per LoRA"),
        (["merge", "RUN", "--weights", "x"], "must be numbers"),
        (["merge", "base"], "has no LoRA"),
    ],
)
def test_mistakes_are_told(run, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    asked = [str(run) if word == "RUN" else word for word in words]
    result = CliRunner().invoke(app, [*asked, "--trust"])
    assert isinstance(result.exception, MarbleError) and said in str(result.exception)
    assert not any(tmp_path.iterdir())  # no empty folder stays
