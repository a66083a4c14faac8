"""The studio's pipeline folder in a process that cannot import marble, beside `marble sample`."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from marble.cli import app
from marble.studio import asset

PROMPTS = ['a sign that says "TEA"', "a photo of a red apple", "a cheerful cat at night"]
SEED = 7

STRANGER = """
import json, logging, sys, warnings
sys.modules["marble"] = None  # from here on `import marble` fails
folder, out, seed, prompts = *sys.argv[1:3], int(sys.argv[3]), json.loads(sys.argv[4])
import torch
from diffusers import StableDiffusion3Pipeline
from transformers import CLIPTextModelWithProjection, PreTrainedTokenizerFast, T5EncoderModel
said = []
class Keep(logging.Handler):
    def emit(self, record): said.append(record.getMessage())
for name in ("diffusers", "transformers"):
    logging.getLogger(name).addHandler(Keep(level=logging.WARNING))
warnings.simplefilter("always")
warnings.showwarning = lambda message, *_: said.append(str(message))
pipe = StableDiffusion3Pipeline.from_pretrained(folder)
opening = list(said)
pipe.set_progress_bar_config(disable=True)
for i, prompt in enumerate(prompts):
    picture = pipe(prompt, num_inference_steps=10, guidance_scale=1.0, max_sequence_length=2,
                   generator=torch.Generator().manual_seed(seed + i)).images[0]
    picture.save(f"{out}/{i:03d}.png")
loaded = sorted({m.split(".")[0] for m in sys.modules if sys.modules[m] is not None})
print(json.dumps({"opening": opening, "drawing": said[len(opening):], "modules": loaded}))
"""


def pixels(folder):
    pictures = sorted(folder.glob("*.png"))
    return np.stack([np.asarray(Image.open(path), dtype=int) for path in pictures])


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """What a fresh process with stock diffusers said, and the pictures it drew."""
    out = tmp_path_factory.mktemp("theirs")
    words = [str(asset("pipeline")), str(out), str(SEED), json.dumps(PROMPTS)]
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), pixels(out)


def test_stock_diffusers_opens_it_without_a_word(stranger):
    answer, pictures = stranger
    assert "marble" not in answer["modules"]
    assert answer["opening"] == []
    # Two T5 tokens are asked for, and diffusers tells what the T5 does not see; nothing else.
    assert all("`max_sequence_length` is set to  2" in line for line in answer["drawing"])
    assert pictures.shape == (len(PROMPTS), 64, 64, 3)


def test_the_same_seed_gives_the_same_picture(stranger, tmp_path):
    out = tmp_path / "ours"
    words = ["base", *PROMPTS, "--sampler", "euler", "--steps", "10", "--seed", str(SEED)]
    done = CliRunner().invoke(app, ["sample", *words, "--out", str(out), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    _, theirs = stranger
    ours = pixels(out)
    assert abs(ours - theirs).max() <= 1  # kernels may round a level up or down
    assert (ours == theirs).mean() > 0.99
    # Another seed draws something else, so agreement means something.
    assert abs(ours[0] - np.roll(ours, 1, 0)[0]).mean() > 5


def test_the_weights_fit_in_the_package():
    sizes = [f.stat().st_size for f in asset("").rglob("*.safetensors")]
    assert sum(sizes) <= 30e6 and max(sizes) < 16 * 2**20
