"""A run's LoRA in a process that has never heard of marble."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from marble.recipe import load_recipe
from marble.sampling import draw_prompts
from marble.training.run import train

PROMPTS = ["a cat", 'a sign that says "TEA"']

STRANGER = """
import json, logging, sys, warnings
warnings.simplefilter("always")
caught, said = [], []
warnings.showwarning = lambda message, *_: caught.append(str(message))
class Keep(logging.Handler):
    def emit(self, record): said.append(record.getMessage())
import torch
from diffusers import StableDiffusion3Pipeline
for name in ("diffusers", "transformers", "peft"):
    logging.getLogger(name).addHandler(Keep(level=logging.WARNING))
model, lora, out = sys.argv[1:]
ENCODERS = [f"{part}{n}" for part in ("text_encoder", "tokenizer") for n in ("", "_2", "_3")]
pipe = StableDiffusion3Pipeline.from_pretrained(model, text_encoder_3=None, tokenizer_3=None)
pipe.set_progress_bar_config(disable=True)
said.clear(), caught.clear()
pipe.load_lora_weights(lora)
loading = said + caught
for i, prompt in enumerate(json.loads(PROMPTS)):
    picture = pipe(prompt, num_inference_steps=3, guidance_scale=1.0, max_sequence_length=2,
                   generator=torch.Generator().manual_seed(7 + i)).images[0]
    picture.save(f"{out}/{i}.png")
pipe.unload_lora_weights()
said.clear(), caught.clear()
pipe.transformer.load_lora_adapter(lora, weight_name="pytorch_lora_weights.safetensors")
directly = said + caught
bare = StableDiffusion3Pipeline.from_pretrained(model, **dict.fromkeys(ENCODERS))
bare.load_lora_weights(lora)
print(json.dumps({"directly": directly, "bare": bare.get_list_adapters(),
                  "marble": "marble" in sys.modules, "said": loading}))
"""


@pytest.fixture(scope="module")
def run(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "exported"
    recipe = toy.recipe("optim.lr=0.1", "train.steps=3")
    train(recipe, folder, device="cpu", console=Console(quiet=True))
    return folder


def ask_stranger(toy, lora, out) -> dict:
    out.mkdir()
    code = f"PROMPTS = {json.dumps(PROMPTS)!r}\n" + STRANGER
    done = subprocess.run(
        [sys.executable, "-c", code, str(toy.folder / "model"), str(lora), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def pictures(folder):
    paths = sorted(folder.glob("*.png"))
    return np.stack([np.asarray(Image.open(p)).astype(int) for p in paths])


def test_lora_gives_the_pictures_of_marble_sample(toy, run, tmp_path):
    lora = next(run.glob("checkpoints/step-*/lora"))
    recipe = load_recipe(str(run / "config.yaml"))
    ours = draw_prompts(recipe, lora, PROMPTS, tmp_path / "ours", seed=7, device="cpu")
    draw_prompts(recipe, None, PROMPTS, tmp_path / "base", seed=7, device="cpu")
    answer = ask_stranger(toy, lora, tmp_path / "theirs")
    assert not answer["marble"]
    # For any LoRA of an SD3 transformer alone diffusers notes that the two CLIP encoders have
    # none; only LoRA weights in them would silence it, which pipelines without those encoders
    # cannot load. Of the file it must not complain.
    assert all("No LoRA keys associated to CLIPText" in line for line in answer["said"])
    assert list(answer["bare"]) == ["transformer"]
    assert answer["directly"] == []  # into the transformer it loads without a word
    assert len(ours) == 2
    assert abs(pictures(tmp_path / "theirs") - pictures(tmp_path / "ours")).max() <= 1
    assert abs(pictures(tmp_path / "base") - pictures(tmp_path / "ours")).max() > 1


def test_model_card(toy, run):
    card = (next(run.glob("checkpoints/step-*/lora")) / "README.md").read_text()
    assert card.startswith("---\nbase_model: ")
    for part in ("library_name: diffusers", "| score | base | trained | gain |", "seed 0"):
        assert part in card
    for name in ("red", "blue", "dark"):
        assert re.search(rf"^\| {name} \| -?0\.\d+ \|", card, re.MULTILINE)
    assert "eval.seed: 1234" in card
    recipe = card.split("```yaml\n")[1].split("```")[0]
    assert recipe == (run / "config.yaml").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert "num_inference_steps=3" in code and "max_sequence_length=2" in code
