"""`rollout.fp8`: rollouts alone are drawn in fp8, and a run still resumes exactly."""

import pytest
import torch
from rich.console import Console

from marble.errors import MarbleError
from marble.models import fp8
from marble.recipe import load_recipe
from marble.training.run import train


@pytest.fixture
def anywhere(monkeypatch):
    """As if this device multiplied fp8 fast: torch multiplies it on any."""
    monkeypatch.setattr(fp8, "check", lambda device: None)


def test_only_rollouts_and_their_base_pictures_are(trainer, anywhere, monkeypatch):
    words = ["train.probe=2", "balance.method=progress", "balance.progress.paired=3"]
    run, plain = trainer("rollout.fp8=true", *words), trainer(*words)
    samples = run._sampler().epoch(0)
    low, high = (one.rollout(one._mine(samples)) for one in (run, plain))
    assert not torch.equal(low.latents, high.latents)
    assert (low.latents - high.latents).norm() < 0.2 * high.latents.norm()
    seen, velocity = [], type(run.adapter).velocity

    def watched(self, *args):
        inside = any(type(m) is fp8.Fp8Linear for m in self.transformer.modules())
        seen.append((inside, torch.is_grad_enabled(), self.transformer.training))
        return velocity(self, *args)

    monkeypatch.setattr(type(run.adapter), "velocity", watched)
    run.run_epoch()
    inside = [low for low, *_ in seen]
    steps = run.recipe.rollout.steps
    assert inside[: 2 * steps] == [True] * 2 * steps  # nine pictures, five at once
    assert not any(inside[2 * steps :])  # training
    seen.clear()
    run.run_epoch()
    assert [low for low, *_ in seen][: 3 * steps] == [True] * 3 * steps  # the base's pairs too
    seen.clear()
    run.look() if run.watch.started else run.start_watch()
    assert seen and not any(low for low, *_ in seen)


def test_it_resumes_exactly(toy, tmp_path, anywhere):
    console = Console(quiet=True)
    words = ["rollout.fp8=true", "train.checkpoint_every=1", "train.probe=0"]
    train(toy.recipe(*words), tmp_path / "run", device="cpu", console=console)
    again = load_recipe(str(tmp_path / "run" / "config.yaml"), ["train.steps=4"])
    train(again, tmp_path / "run", device="cpu", resume=True, console=console)
    train(toy.recipe(*words, "train.steps=4"), tmp_path / "whole", device="cpu", console=console)
    lora = "checkpoints/step-000004/lora/pytorch_lora_weights.safetensors"
    assert (tmp_path / "run" / lora).read_bytes() == (tmp_path / "whole" / lora).read_bytes()


def test_a_machine_that_cannot_is_told_before_anything_loads(toy, tmp_path):
    with pytest.raises(MarbleError, match=r"rollout\.fp8: needs a GPU"):
        train(toy.recipe("rollout.fp8=true"), tmp_path / "run", device="cpu")
