"""What a model measured and decided stays decided when a run is resumed."""

import pytest
from rich.console import Console

from marble.models.decoding import Decoder
from marble.models.pipeline import PipelineAdapter
from marble.recipe import load_recipe
from marble.training.checkpoint import State
from marble.training.run import train


@pytest.fixture
def decoding_as_on_a_gpu(monkeypatch):
    """Pictures by the decoder that decides; what it found is replaced by `verdict`."""
    verdict = {"half": True, "made": 0}

    def decide(self, latents, size):
        verdict["made"] += 1
        self.half = verdict["half"]

    def taken(self, decisions):
        self._decoder = Decoder(self.pipeline.vae, self.say, decisions["decoding in fp16"])

    def decoded(self, latents, size):
        self._decoder = self._decoder or Decoder(self.pipeline.vae, self.say)
        return self._decoder(latents, size)

    monkeypatch.setattr(Decoder, "_decide", decide)
    monkeypatch.setattr(PipelineAdapter, "_decoded", decoded)
    monkeypatch.setattr(PipelineAdapter, "decide", taken)
    return verdict


def test_a_resumed_run_decodes_as_it_began(toy, tmp_path, decoding_as_on_a_gpu):
    console, out = Console(quiet=True), tmp_path / "run"
    decoding_as_on_a_gpu["half"] = False
    few = toy.recipe("train.checkpoint_every=1", "train.probe=0")
    train(few, out, device="cpu", console=console)
    assert decoding_as_on_a_gpu["made"] == 1
    decoding_as_on_a_gpu["half"] = True  # what the pictures of the resumed run would say
    more = load_recipe(str(out / "config.yaml"), ["train.steps=4"])
    train(more, out, device="cpu", resume=True, console=console)
    assert decoding_as_on_a_gpu["made"] == 1


def test_every_process_has_its_own_and_old_checkpoints_have_none(trainer, monkeypatch):
    run = trainer("train.probe=0")
    monkeypatch.setattr(run.adapter, "decisions", lambda: {"decoding in fp16": False})
    saved = run.state()
    assert saved.meta["decisions"] == [{"decoding in fp16": False}]
    seen = []
    monkeypatch.setattr(run.adapter, "decide", seen.append)
    run.load(saved.snapshot())
    two = saved.meta | {"decisions": [{"decoding in fp16": True}, {"decoding in fp16": False}]}
    run.load(State(saved.tensors, two))  # this process is the first
    run.load(State(saved.tensors, {k: v for k, v in saved.meta.items() if k != "decisions"}))
    assert seen == [{"decoding in fp16": False}, {"decoding in fp16": True}, {}]
