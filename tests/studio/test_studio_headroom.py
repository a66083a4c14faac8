"""The shipped base beside real pictures of the same held-out prompts, by every reward."""

import json
from typing import NamedTuple

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from marble.cli import app
from marble.models.base import Adapter
from marble.models.build import build_adapter
from marble.recipe import load_recipe
from marble.studio.world import generate
from marble.training.setup import build_rewards

SOURCES = ("geneval", "ocr", "general")
EACH = 64
RECIPE = load_recipe("studio")
CPU = torch.device("cpu")

pytestmark = pytest.mark.slow


class Scored(NamedTuple):
    real: np.ndarray
    base: np.ndarray
    source: np.ndarray


def draw(adapter: Adapter, prompts: list[str]) -> torch.Tensor:
    settings = RECIPE.rollout
    latents = adapter.sample(
        adapter.encode(prompts),
        range(len(prompts)),
        steps=settings.steps,
        sampler=settings.sampler,
        batch_size=settings.batch_size,
    )
    return adapter.decode(latents)


@pytest.fixture(scope="module")
def scored() -> dict[str, Scored]:
    """Reward → its scores of real and of drawn pictures, prompt by prompt, and their sources."""
    adapter = build_adapter(RECIPE, CPU)
    parts = [generate(EACH, seed=2_718, sources={s: 1.0}, split="test") for s in SOURCES]
    prompts = [text for part in parts for text in part["prompts"]]
    metadata = [dict(meta) for part in parts for meta in part["metadata"]]
    real = torch.from_numpy(np.concatenate([part["images"] for part in parts]))
    pictures = {"real": real.permute(0, 3, 1, 2).contiguous(), "base": draw(adapter, prompts)}
    source = np.array([meta["source"] for meta in metadata])
    found: dict[str, Scored] = {}
    for rewards in build_rewards(RECIPE, CPU):
        assert rewards is not None
        rows = {k: rewards.score(images, prompts, metadata) for k, images in pictures.items()}
        for k, name in enumerate(rewards.names):
            found[name] = Scored(rows["real"][k], rows["base"][k], source)
    return found


NAMES = [reward.name for reward in (*RECIPE.rewards.train, *RECIPE.rewards.heldout)]
SPECIALISTS = {
    "ocr": "ocr",
    "ocr-read": "ocr",
    "studio-geneval": "geneval",
    "geneval-strict": "geneval",
}


def test_there_are_five_rewards_and_some_held_out(scored):
    assert len(RECIPE.rewards.train) == 5 and len(RECIPE.rewards.heldout) >= 2
    assert list(scored) == NAMES and set(SPECIALISTS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_specialists_have_no_score_outside_their_source(scored, name):
    """Absent is NaN, never 0."""
    found = scored[name]
    applies = found.source == SPECIALISTS[name] if name in SPECIALISTS else found.source != ""
    for scores in (found.real, found.base):
        np.testing.assert_array_equal(np.isfinite(scores), applies)


@pytest.mark.parametrize("name", NAMES)
def test_real_pictures_score_higher_than_the_base(scored, name):
    found = scored[name]
    assert np.nanmean(found.real) > np.nanmean(found.base)


@pytest.mark.parametrize("name", ["ocr-read", "geneval-strict"])
def test_real_pictures_pass(scored, name):
    assert np.nanmean(scored[name].real) >= 0.95


def test_the_two_preferences_differ_on_what_the_base_draws(scored):
    pick, aesthetic = (scored[name].base for name in ("studio-pick", "studio-aesthetic"))
    assert np.corrcoef(pick, aesthetic)[0, 1] < 0.7


def test_the_base_leaves_room():
    """On every held-out prompt: neither hopeless nor done, like SD3.5 without guidance."""
    done = CliRunner().invoke(app, ["eval", "base", "--recipe", "studio", "--json"])
    assert done.exit_code == 0, done.output
    heldout = json.loads(done.stdout)["heldout"]
    assert 0.3 <= heldout["ocr-read"]["mean"] <= 0.7
    assert 0.3 <= heldout["geneval-strict"]["mean"] <= 0.7
