"""A run that collapses: told, stopped or taken back; the best checkpoint is what everyone uses."""

import json

import numpy as np
import pytest
import torch
from _survive import assert_same_run, make_world, rows, run_here

from marble.cli.common import find_policy
from marble.errors import MarbleError
from marble.evaluation import read_run
from marble.training.checkpoint import best_of, load_state
from marble.training.loop import Trainer

PROBE = ["train.probe=32", "train.probe_every=2", "train.steps=12", "train.checkpoint_every=3"]
PROBE += ["train.keep_checkpoints=1", "eval.every=0"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("survive"))


@pytest.fixture
def collapsing(monkeypatch):
    """The probe rises until step 4 and falls after it, unless the learning rate was halved."""

    def probe(self, policy):
        prompts = [s.prompt.text for s in self.parts.probe_samples]
        luck = np.random.default_rng(0).normal(size=(3, len(prompts)))
        if policy == "base":
            return luck, 0.2
        gain = 0.2 * min(self.step, 4)
        if self.step > 4 and self.lr_scale == 1:
            gain -= 0.5 * (self.step - 4)
        own = np.random.default_rng(self.step).normal(size=luck.shape) * 0.05
        return luck + gain + own, 0.2

    many = [f"prompt {i}" for i in range(16)]
    monkeypatch.setattr(Trainer, "_probe", probe)
    original = Trainer.__init__

    def with_many_prompts(self, recipe, parts, processes):
        for i, sample in enumerate(parts.probe_samples):
            prompt = sample.prompt.__class__(many[i // 2 % 16], sample.prompt.source, {})
            parts.probe_samples[i] = sample.__class__(prompt, i // 2, sample.seed, i)
        while len(parts.probe_samples) < 32:
            i = len(parts.probe_samples)
            last = parts.probe_samples[-1]
            prompt = last.prompt.__class__(many[i // 2], last.prompt.source, {})
            parts.probe_samples.append(last.__class__(prompt, i // 2, i, i))
        original(self, recipe, parts, processes)

    monkeypatch.setattr(Trainer, "__init__", with_many_prompts)


def broken_off(recipe, run, words, at, monkeypatch):
    """A run that loses its power at that step and is gone on with; its outcome, all it said."""
    original = Trainer.run_epoch

    def broken(self):
        if self.step == at:
            raise MarbleError("the power went out")
        return original(self)

    monkeypatch.setattr(Trainer, "run_epoch", broken)
    error, before = run_here(recipe, run, *words)
    assert str(error) == "the power went out"
    monkeypatch.setattr(Trainer, "run_epoch", original)
    outcome, after = run_here(run / "config.yaml", run, resume=True)
    return outcome, before + after


def run_json(run):
    return json.loads((run / "run.json").read_text())


def test_warn_says_so_in_words_and_everyone_uses_the_best(recipe, collapsing, tmp_path):
    run = tmp_path / "run"
    outcome, said = run_here(recipe, run, *PROBE)
    assert outcome.finished and outcome.step == 12
    told = [line for line in said.splitlines() if "collapse:" in line]
    assert told and told[0].startswith("step 8: collapse: the least relative gain on the held-out")
    assert "at step 4" in told[0] and "train.on_collapse=rollback" in told[0]
    assert any("collapse:" in note for row in rows(run) for note in row.get("notes", []))
    assert best_of(run / "checkpoints")["step"] == 4 == run_json(run)["best"]["step"]
    # Kept although three newer ones came, and only one is to be kept.
    assert {p.name for p in (run / "checkpoints").glob("step-*")} == {"step-000004", "step-000012"}
    assert "step 4 of 12 by the held-out probe (worst relative gain" in said
    assert f"LoRA    {run / 'checkpoints' / 'step-000004' / 'lora'}" in said
    assert find_policy(str(run), None, []).lora == run / "checkpoints" / "step-000004" / "lora"
    record = read_run(run)
    assert [e.step for e in record.evals] == [0, 12, 4] and record.last.step == 4


def test_stop_ends_the_run_with_the_best(recipe, collapsing, tmp_path):
    run = tmp_path / "run"
    outcome, said = run_here(recipe, run, *PROBE, "train.on_collapse=stop")
    assert (outcome.step, outcome.finished, outcome.reason) == (8, False, "collapsed")
    assert run_json(run)["status"] == "stopped"
    assert "Stopping; the best checkpoint is step 4" in said
    assert read_run(run).last.step == 4


def test_rollback_takes_the_best_policy_and_half_the_learning_rate(recipe, collapsing, tmp_path):
    run = tmp_path / "run"
    words = [*PROBE, "train.on_collapse=rollback", "train.keep_checkpoints=20"]
    outcome, said = run_here(recipe, run, *words, "train.checkpoint_every=1")
    assert outcome.finished
    assert "Back to the best checkpoint, step 4, with the learning rate times 0.5" in said
    lrs = [row["lr"] for row in rows(run)]
    assert lrs[8:] == [lr / 2 for lr in lrs[4:8]]
    before, after, best = (load_state(run / "checkpoints" / f"step-{n:06d}") for n in (7, 8, 4))
    for group in ("live", "old", "ema", "optimizer"):
        same = [torch.equal(after.tensors[group][n], t) for n, t in best.tensors[group].items()]
        assert all(same), group
    assert any(
        not torch.equal(before.tensors["live"][n], t) for n, t in best.tensors["live"].items()
    )
    assert after.meta["step"] == 8 and after.meta["lr_scale"] == 0.5
    assert best_of(run / "checkpoints")["step"] == 12  # it has held since


@pytest.mark.parametrize("at", [5, 8, 9, 11])
def test_broken_off_around_a_rollback_it_resumes_bit_for_bit(
    recipe, collapsing, tmp_path, monkeypatch, at
):
    words = [*PROBE, "train.on_collapse=rollback"]
    run_here(recipe, tmp_path / "whole", *words)
    outcome, _ = broken_off(recipe, tmp_path / "cut", words, at, monkeypatch)
    assert outcome.finished
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert best_of(tmp_path / "whole" / "checkpoints") == best_of(tmp_path / "cut" / "checkpoints")


@pytest.mark.parametrize("method", ["marble", "uniform"])
@pytest.mark.parametrize("told", [True, False])
def test_a_reward_that_another_cancels_is_no_collapse(
    recipe, collapsing, tmp_path, monkeypatch, method, told
):
    """It falls as the other one rises. Once the two are told neither judges; a resumed run has not
    forgotten it."""
    steady = Trainer._probe

    def probe(self, policy):
        scores, diversity = steady(self, "base")
        change = np.zeros(3) if policy == "base" else np.array([-0.3, 0.3, 0.3]) * self.step
        return scores + change[:, None], diversity

    monkeypatch.setattr(Trainer, "_probe", probe)
    found = [(0, 1)] if told else []
    monkeypatch.setattr("marble.training.opposed.opposed_pairs", lambda cos: found)
    words = [*PROBE, f"balance.method={method}", "balance.every=1", "log.harmony_every=1"]
    run_here(recipe, tmp_path / "whole", *words)
    outcome, said = broken_off(recipe, tmp_path / "cut", words, 7, monkeypatch)
    assert outcome.finished
    assert said.count("Neither counts for checkpoints/best from here on.") == told
    assert ("collapse:" in said) == (not told)
    assert best_of(tmp_path / "cut" / "checkpoints")["step"] == (12 if told else 2)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
