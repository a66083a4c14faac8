"""The reward models that ship with the package, by their registry names, on held-out prompts."""

from pathlib import Path

import numpy as np
import pytest
import torch

import marble
from marble.rewards import RewardSet, load
from marble.studio.pretrain.reward_acceptance import degrade_all, retrieval
from marble.studio.world import generate

ASSETS = Path(marble.__file__).parent / "studio" / "assets" / "rewards"
N = 320


@pytest.fixture(scope="module")
def real():
    data = generate(N, seed=31_415, split="test")
    images = torch.from_numpy(data["images"]).permute(0, 3, 1, 2).contiguous()
    return images, data["prompts"], data["metadata"]


@pytest.fixture(scope="module")
def wrong():
    data = generate(N, seed=31_415, split="test", sloppy=1.0)
    return torch.from_numpy(data["images"]).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="module")
def five():
    return RewardSet(
        [
            load("ocr", engine="ppocr-rec"),
            load("studio-geneval"),
            load("studio-clip"),
            load("studio-pick"),
            load("studio-aesthetic"),
        ]
    )


def test_weights_fit_in_the_package():
    sizes = {f: f.stat().st_size for f in ASSETS.rglob("*") if f.is_file()}
    assert sum(sizes.values()) < 9.5e6
    assert {f.parent.name for f in sizes} >= {"detector", "clip", "clip2", "pick", "realism"}


def test_specialists_apply_to_their_source_only(five, real):
    images, prompts, metadata = real
    scores = five.score(images[:64], prompts[:64], metadata[:64])
    source = np.array([m["source"] for m in metadata[:64]])
    for name, only in (("ocr", "ocr"), ("studio-geneval", "geneval")):
        row = scores[five.names.index(name)]
        np.testing.assert_array_equal(np.isfinite(row), source == only)
    for name in ("studio-clip", "studio-pick", "studio-aesthetic"):
        assert np.isfinite(scores[five.names.index(name)]).all()


def test_real_pictures_score_and_one_error_fails(five, real, wrong):
    images, prompts, metadata = real
    right = five.score(images, prompts, metadata)
    broken = five.score(wrong, prompts, metadata)
    geneval, ocr = five.names.index("studio-geneval"), five.names.index("ocr")
    assert np.nanmean(right[geneval]) >= 0.95
    assert np.nanmean(broken[geneval]) <= 0.1
    assert np.nanmean(right[ocr]) >= 0.95


def test_a_wrong_word_does_not_pass(real):
    _, prompts, metadata = real
    data = generate(N, seed=31_415, split="test", sloppy=1.0)
    other = [m["source"] == "ocr" and t != m["text"] for m, t in zip(metadata, data["texts"])]
    images = torch.from_numpy(data["images"]).permute(0, 3, 1, 2)[other]
    asked = [prompt for prompt, keep in zip(prompts, other) if keep]
    scores = load("ocr", engine="ppocr-rec").score(images, asked, [{}] * len(asked))
    assert len(scores) > 50 and (scores == 1).mean() <= 0.1


def test_clip_finds_the_right_caption(real):
    images, prompts, _ = real
    assert retrieval(load("studio-clip"), images, prompts, seed=0) >= 0.9
    # Held out, smaller and trained for less time: a coarser judge, but no stranger to the world.
    assert retrieval(load("studio-clip2"), images, prompts, seed=0) >= 0.8


@pytest.mark.parametrize("name", ["studio-pick", "studio-aesthetic", "studio-realism"])
def test_clean_beats_degraded(name, real):
    images, prompts, metadata = real
    reward = load(name)
    clean = np.asarray(reward.score(images, prompts, metadata))
    bad = np.asarray(reward.score(degrade_all(images, 1), prompts, metadata))
    assert (clean > bad).mean() >= 0.95


def test_pick_and_aesthetic_are_different_notions(real):
    images, prompts, metadata = real
    pick = np.asarray(load("studio-pick").score(images, prompts, metadata))
    aesthetic = np.asarray(load("studio-aesthetic").score(images, prompts, metadata))
    assert abs(np.corrcoef(pick, aesthetic)[0, 1]) < 0.7


def test_pick_and_aesthetic_share_one_model(five):
    by_name = dict(zip(five.names, five.rewards))
    assert by_name["studio-pick"].encoder is by_name["studio-aesthetic"].encoder
