"""The loop against the same run written down in plain torch."""

import numpy as np
import pytest
import torch
from _training_reference import Reference, advantage
from _training_toy import randomise

from marble.models.build import build_adapter

CLIP, KL, LR = 0.5, 0.02, 1e-2
COMMON = [
    f"optim.grad_clip={CLIP}",
    f"objective.kl={KL}",
    "balance.target=full",
    "rollout.old_decay={initial: 0.3, rate: 0.1}",
]


@pytest.fixture
def reference(toy):
    def make(*overrides: str) -> Reference:
        recipe = toy.recipe(*overrides)
        adapter = build_adapter(recipe, torch.device("cpu"))
        lora = recipe.model.lora
        adapter.add_lora(lora.rank, lora.alpha, targets=lora.targets, init=lora.init, seed=0)
        randomise(adapter)
        pairs = recipe.timesteps_per_sample
        return Reference(adapter, LR, CLIP, KL, steps=recipe.rollout.steps, pairs=pairs)

    return make


def rewards_named(toy, trainer, names):
    scope = {}
    exec(toy.rewards_file.read_text(), scope)

    def score(images, samples):
        prompts = [s.prompt.text for s in samples]
        metadata = [s.prompt.metadata for s in samples]
        rows = [scope[name](images, prompts, metadata) for name in names]
        return np.array(rows, dtype=np.float64)

    return score


def assert_same_weights(trainer, reference):
    """A step of AdamW is about `lr` long, so `lr`/1000 is a fine ruler."""
    for name, live in trainer.parameters.items():
        torch.testing.assert_close(live, reference.live[name], atol=1e-3 * LR, rtol=1e-4)
        torch.testing.assert_close(
            trainer.ema[name], reference.ema[name], atol=1e-3 * LR, rtol=1e-4
        )
    old = trainer.adapter.lora_state("old")
    for name, value in reference.adapter.lora_state("old").items():
        torch.testing.assert_close(old[name], value, atol=1e-3 * LR, rtol=1e-4)


def run_both(trainer, reference, score, epochs, every):
    """Rows of the trainer, after both have taken the same epochs; weights agree after each."""
    rows = []
    for epoch in range(epochs):
        samples = trainer._sampler().epoch(epoch)
        start = {name: p.detach().clone() for name, p in trainer.parameters.items()}
        rows += trainer.run_epoch()
        x_0, images = reference.rollout(samples)
        torch.testing.assert_close(trainer.last[0].latents, x_0, atol=1e-4, rtol=1e-4)
        assert (trainer.last[0].images.int() - images.int()).abs().max() <= 1
        # Pictures may differ by a grey level: both learn from the same ones.
        rewards = score(trainer.last[0].images, samples)
        reference.step(samples, rewards, refresh=epoch % every == 0)
        reference.follow(min(0.3 + 0.1 * (epoch + 1), 0.5))
        moved = max((p - start[name]).abs().max() for name, p in trainer.parameters.items())
        assert moved > 0.5 * LR
        assert_same_weights(trainer, reference)
    return rows


@pytest.mark.parametrize("every", [1, 2], ids=["two solves", "solve, then cached"])
def test_two_marble_steps_by_hand(toy, trainer, reference, every):
    entries = ", ".join(f"{{name: {n}, reward: '{toy.rewards_file}:{n}'}}" for n in ("red", "blue"))
    overrides = [*COMMON, f"rewards.train=[{entries}]", f"balance.every={every}"]
    run, plain = trainer(*overrides), reference(*overrides)
    score = rewards_named(toy, run, ["red", "blue"])
    rows = run_both(run, plain, score, epochs=2, every=every)
    for row, entry in zip(rows, plain.log, strict=True):
        assert row["loss"] == pytest.approx(entry["loss"], rel=1e-4)
        assert row["kl"] == pytest.approx(entry["kl"], rel=1e-4)
        assert row["grad_norm/update"] == pytest.approx(entry["norm"], rel=1e-3)
        for k, name in enumerate(("red", "blue")):
            assert row[f"alpha/{name}"] == pytest.approx(entry["alpha"][k], abs=1e-6)
            assert row[f"coefficient/{name}"] == pytest.approx(entry["c"][k], rel=1e-3)
            spread = np.nanstd(entry["adv"][k])
            assert row[f"advantage/{name}/std"] == pytest.approx(spread, rel=1e-6)
        if "norms" in entry:
            assert row["alpha_raw/red"] == pytest.approx(entry["alpha_raw"][0], abs=1e-6)
            assert row["cos/red|blue"] == pytest.approx(entry["cos"], abs=1e-4)
            assert row["grad_norm/red"] == pytest.approx(entry["norms"][0], rel=1e-3)
            assert row["grad_norm/blue"] == pytest.approx(entry["norms"][1], rel=1e-3)
    assert np.isnan(plain.log[0]["adv"][1]).any()  # blue does not apply everywhere
    assert rows[1]["old_deviation"] > 0  # v_old lags behind in the second step


def test_single_is_plain_diffusion_nft(toy, trainer, reference):
    overrides = [*COMMON, "balance.method=single", "balance.reward=dark", "log.harmony_every=0"]
    run, plain = trainer(*overrides), reference(*overrides)
    rows = run_both(run, plain, rewards_named(toy, run, ["dark"]), epochs=2, every=1)
    for row, entry in zip(rows, plain.log, strict=True):
        assert row["loss"] == pytest.approx(entry["loss"], rel=1e-4)
        assert row["alpha/dark"] <= 1


def test_advantages_of_an_epoch_by_hand(toy, trainer):
    run = trainer()
    run.run_epoch()
    rollout, batch = run.last
    groups = np.array([s.group for s in rollout.samples])
    for k in range(3):
        expected = advantage(rollout.scores_Kn[k], groups)
        np.testing.assert_allclose(batch.adv.adv_KN[k], expected, rtol=1e-9, atol=1e-12)
