"""Stress rewards: what each promises, from Python and from a recipe."""

import numpy as np
import pytest
import torch

from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.rewards import RewardSet, check, load
from marble.rewards.synthetic import Constant, Noise, Saturation, pixel_noise

MODULE = "marble.rewards.synthetic"


def pictures(n=200, size=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, size, size), generator=g, dtype=torch.uint8)


def score(reward, images, source="general"):
    n = len(images)
    return RewardSet([reward]).score(images, ["a cat"] * n, [{"source": source}] * n)[0]


def test_noise_is_normal_repeatable_and_independent():
    images = pictures(2000, 4)
    first, again, other = (pixel_noise(images, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(pixel_noise(images[5:9], 0), first[5:9])  # not of the batch
    assert abs(first.mean()) < 0.1 and abs(first.std() - 1) < 0.1
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    assert score(Noise(seed=3, scale=1e3), images).std() == pytest.approx(1e3, rel=0.1)


def test_constant_is_silent():
    assert set(score(Constant(value=2.0), pictures())) == {2.0}


def test_saturation():
    grey, red = torch.full((1, 3, 4, 4), 90), torch.zeros(1, 3, 4, 4)
    red[:, 0] = 200
    black = torch.zeros(1, 3, 4, 4)
    images = torch.cat([grey, red, black]).to(torch.uint8)
    np.testing.assert_allclose(score(Saturation(), images), [0, 1, 0])


def test_altered_is_affine_in_the_other_reward():
    images = pictures()
    plain = score(Saturation(), images)
    opposite = load(f"{MODULE}:Altered", reward=f"{MODULE}:Saturation", scale=-1e3, offset=2.0)
    np.testing.assert_allclose(score(opposite, images), 2 - 1e3 * plain, rtol=1e-12)
    assert opposite.range == (-998.0, 2.0)
    noisy = load(f"{MODULE}:Altered", reward=f"{MODULE}:Saturation", noise=0.01, seed=4, scale=2)
    np.testing.assert_allclose(
        score(noisy, images), 2 * (plain + 0.01 * pixel_noise(images, 4)), rtol=1e-12
    )


def test_altered_applies_where_the_other_does():
    ocr = load(f"{MODULE}:Altered", reward="ocr", options={"engine": "ppocr-rec"})
    assert not ocr.applies({"source": "general", "prompt": "a cat"})
    assert ocr.applies({"source": "ocr", "prompt": 'a sign that says "TEA"'})
    own = load(f"{MODULE}:Altered", reward=f"{MODULE}:Saturation", sources=["ocr"])
    assert np.isnan(score(own, pictures(3))).all()
    assert np.isfinite(score(own, pictures(3), "ocr")).all()


def half_says_nothing(images, prompts, metadata):
    return [None if i % 2 else 1.0 for i in range(len(prompts))]


def test_altered_keeps_not_applicable():
    found = score(load(f"{MODULE}:Altered", reward=f"{__file__}:half_says_nothing"), pictures(4))
    np.testing.assert_array_equal(found, [1.0, np.nan, 1.0, np.nan])


def test_from_a_recipe_and_its_mistakes():
    added = (
        f"rewards.add=[{{name: anti, reward: '{MODULE}:Altered', "
        "options: {reward: studio-clip, scale: -1}}]"
    )
    recipe = load_recipe("studio", [added])
    entry = recipe.rewards.train[-1]
    assert recipe.rewards.names[-1] == "anti"
    assert check(entry.reward, **entry.options) == check("studio-clip")
    with pytest.raises(MarbleError, match="did you mean studio-clip"):
        check(entry.reward, reward="studio-clp")
    with pytest.raises(MarbleError, match="did you mean scale"):
        load(entry.reward, reward="studio-clip", scal=2)
