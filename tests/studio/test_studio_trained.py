"""The shipped LoRA: what `studio-trained` draws can be read, where the base's cannot."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from marble.cli import app
from marble.rewards.ocr import OCR
from marble.studio import TRAINED

PROMPTS = [
    f'a sign that says "{word}"' for word in ("SODA", "GATE", "ROOF", "LAKE", "JAM", "RIVER")
]


def drawn(target: str, out) -> torch.Tensor:
    words = ["sample", target, *PROMPTS, "--seed", "100", "--out", str(out), "--json"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    files = json.loads(ran.stdout)["files"]
    pictures = np.stack([np.array(Image.open(file)) for file in files])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2)


@pytest.mark.filterwarnings("ignore")
def test_its_signs_read(tmp_path):
    read = OCR("ppocr-rec")
    scores = {
        target: np.nanmean(
            np.asarray(read.score(drawn(target, tmp_path / target), PROMPTS, [{}] * len(PROMPTS)))
        )
        for target in ("base", TRAINED)
    }
    assert scores[TRAINED] > 0.85 > 0.75 > scores["base"], scores


def test_a_word_that_is_no_target_is_told_of_it():
    ran = CliRunner().invoke(app, ["sample", "studio-trainde", "a cat"])
    assert ran.exit_code != 0 and "studio-trained" in str(ran.exception)


def test_it_belongs_to_the_studio():
    words = ["sample", TRAINED, "a cat", "--recipe", "sd35m-5rewards"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code != 0 and "leave out --recipe" in str(ran.exception)
