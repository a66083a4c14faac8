"""The integration examples run as they stand, on a tiny model, and train what they say."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from marble.models.sd3 import SD3

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return SD3.tiny(tmp_path_factory.mktemp("model"), t5=True)


def run(script: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_plain_diffusers_script(tiny, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    words = ["--images", 3, "--steps", 3, "--sampling-steps", 2, "--batch", 5, "--lr", 1e-2]
    text = run("diffusers_lora.py", "--model", tiny, "--out", tmp_path / "lora", *words)
    steps = re.findall(r"step (\d): warm (\S+)  bright (\S+)  contrast (\S+)  α (.*)", text)
    assert [s[0] for s in steps] == ["1", "2", "3"]
    for step in steps:
        assert sum(map(float, step[4].split(", "))) == pytest.approx(1, abs=0.02)
    assert steps[0][1:4] != steps[2][1:4]  # the pictures change
    pipe = StableDiffusion3Pipeline.from_pretrained(tiny)
    pipe.load_lora_weights(tmp_path / "lora")  # stock diffusers takes the result
    assert any("lora" in name for name, _ in pipe.transformer.named_parameters())


@pytest.mark.parametrize("method", ["marble", pytest.param("progress", marks=pytest.mark.slow)])
def test_a_loop_of_diffusion_nfts_shape(tiny, method, monkeypatch, capsys):
    words = ["--images", 3, "--epochs", 3, "--sampling-steps", 2, "--timesteps", 2, "--batch", 9]
    script = EXAMPLES / "diffusion_nft.py"
    words = [script, "--model", tiny, "--method", method, *words]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    runpy.run_path(str(script), run_name="__main__")
    text = capsys.readouterr().out
    epochs = re.findall(r"epoch (\d): .* α (.*)  v_old (\S+) away", text)
    assert [e[0] for e in epochs] == ["1", "2", "3"]
    for epoch in epochs:
        assert sum(map(float, epoch[1].split(", "))) == pytest.approx(1, abs=0.02)
    assert float(epochs[0][2]) == 0  # decay 0: v_old is v_θ after the first epoch
    assert 0 < float(epochs[2][2]) < 1
