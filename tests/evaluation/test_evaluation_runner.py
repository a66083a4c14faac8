"""Evaluation of a real (tiny) model with real reward sets."""

import json

import numpy as np
import pytest
import torch

from marble.data import Prompt
from marble.evaluation import evaluate
from marble.models import load
from marble.models.tiny import save_tiny_sd3
from marble.rewards import RewardSet

PROMPTS = [Prompt("a cat", "general"), Prompt('"TEA"', "ocr"), Prompt("a dog", "general")]


def brightness(images, prompts, metadata):
    return images.float().mean(dim=(1, 2, 3)) / 255


def red_on_signs(images, prompts, metadata):
    red = images[:, 0].float().mean(dim=(1, 2)) / 255
    return [float(r) if m["source"] == "ocr" else None for r, m in zip(red, metadata)]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    return load(str(save_tiny_sd3(tmp_path_factory.mktemp("tiny"))), max_sequence_length=2)


def run(adapter, **options):
    rewards = RewardSet({"bright": brightness, "red": red_on_signs})
    return evaluate(adapter, rewards, PROMPTS, steps=2, images_per_prompt=2, **options)


def test_scores_belong_to_their_pictures(adapter):
    seen = []
    result = run(adapter, batch_size=4, keep_images=True, progress=lambda *at: seen.append(at))
    assert seen == [(4, 6), (6, 6)]
    assert [p.text for p in result.prompts] == [p.text for p in PROMPTS for _ in range(2)]
    assert len(set(result.seeds)) == 6 and result.images.shape == (6, 3, 16, 16)
    assert result.scores["bright"] == pytest.approx(brightness(result.images, [], []).numpy())
    assert np.isnan(result.scores["red"][[0, 1, 4, 5]]).all()
    for i in (2, 5):
        latents = adapter.sample(
            adapter.encode([result.prompts[i].text]), [result.seeds[i]], steps=2
        )
        alone = adapter.decode(latents)[0]
        assert (alone.int() - result.images[i].int()).abs().max() <= 1


def test_batch_size_changes_nothing_and_seed_does(adapter):
    first, second = run(adapter, batch_size=6), run(adapter, batch_size=1)
    assert first.scores["bright"] == pytest.approx(second.scores["bright"], abs=1e-3)
    assert first.images is None
    other = run(adapter, batch_size=6, seed=7)
    assert np.abs(other.scores["bright"] - first.scores["bright"]).max() > 1e-4


def test_record_is_json_with_null_for_inapplicable(adapter):
    record = json.loads(json.dumps(run(adapter).record(), allow_nan=False))
    assert record["samples"][0]["scores"]["red"] is None
    assert record["scores"]["red"]["n"] == 2 and list(record["scores"]["red"]["by_source"]) == [
        "ocr"
    ]
    assert record["samples"][2]["source"] == "ocr"


def test_no_prompts(adapter):
    result = evaluate(adapter, RewardSet({"bright": brightness}), [], steps=1)
    assert result.scores["bright"].shape == (0,) and result.summary()["bright"]["mean"] is None
    assert isinstance(result.images, torch.Tensor | None)
