"""Sliders in the loop: rollouts, gradients and resume under preferences of every prompt's own."""

import numpy as np
import pytest
import torch
from _training_toy import randomise

from marble.errors import MarbleError
from marble.objectives import Point

STEER = ["balance.method=steer", "model.lora={rank: 7, alpha: 14}", "objective.kl=0"]


@pytest.fixture
def drawn(trainer):
    """A trainer whose sliders do something, v_old apart from v_θ, and its first epoch."""
    run = trainer(*STEER, "data.prompts_per_epoch=6", "balance.target=reward",
                  "balance.options.own=0.25")  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    old = {
        name: value + 0.05 * torch.randn(value.shape, generator=generator)
        for name, value in run.adapter.lora_state("old").items()
    }
    run.adapter.load_lora_state("old", old)
    return run, run.draw(run._sampler().epoch(0))


def by_group(samples):
    found = {}
    for i, sample in enumerate(samples):
        found.setdefault(sample.group, []).append(i)
    return found


def test_each_group_has_one_preference_and_they_differ(drawn):
    run, epoch = drawn
    assert run.adapter.sliders.parts.keys() == {"shared", "red", "blue", "dark"}
    of_group = {
        group: {epoch.samples[i].prefer for i in at}
        for group, at in by_group(epoch.samples).items()
    }
    assert all(len(weights) == 1 for weights in of_group.values())
    assert len(set.union(*of_group.values())) >= 3
    for i, sample in enumerate(epoch.samples):
        assert tuple(epoch.batch.prefer_KN[:, i].tolist()) == sample.prefer


def test_pictures_are_those_of_the_ordinary_lora_at_the_groups_weights(drawn):
    run, epoch = drawn
    adapter, moved = run.adapter, 0
    values = adapter.lora_state("old")
    for at in by_group(epoch.samples).values():
        samples = [epoch.samples[i] for i in at]
        cond = adapter.encode([s.prompt.text for s in samples])
        plain = {"steps": run.recipe.rollout.steps, "sampler": "euler"}
        weights = samples[0].prefer
        with adapter.using("old"):
            with adapter.swapped(adapter.sliders.at(values, weights), "old"):
                expected = adapter.sample(cond, [s.seed for s in samples], **plain)
            default = adapter.sample(cond, [s.seed for s in samples], **plain)
        torch.testing.assert_close(epoch.rollout.latents[at], expected, atol=2e-5, rtol=1e-4)
        moved += float((default - expected).abs().max()) > 1e-3
    assert moved >= 3


@pytest.mark.parametrize("step", [0, 1], ids=["K gradients recorded", "one backward"])
def test_gradient_is_that_of_one_ordinary_lora_per_group(drawn, step):
    """By plain autograd, group after group: where B's columns are scaled by s in place of a gate,
    the gradient of the unscaled B is s times that of the scaled one. A slider's own entries have
    a quarter of all coefficients on its own reward."""
    run, epoch = drawn
    adapter, recipe, sliders = run.adapter, run.recipe, run.adapter.sliders
    (chosen,) = run.split(epoch, 0, 0)
    report = run.gradient(epoch, chosen, step, 0, on_policy=False)
    found = {name: p.grad.clone() for name, p in run.parameters.items()}

    adv = epoch.batch.adv.adv_KN
    valid = ~adv.isnan()
    pairs, total = run.settings.pairs, adv.shape[1] * run.settings.pairs
    c = torch.as_tensor(report.coefficients_K)[:, None] / (valid.sum(1) * pairs)[:, None]
    a = (adv / 10).clamp(-0.5, 0.5).where(valid, 0.0)  # r − 1/2, with A_max = 5
    pull_N = (c * a * torch.tensor([s.prefer for s in epoch.samples]).T).sum(0)
    combined = pull_N * total * 10  # as advantages
    assert float(combined.square().mean().sqrt()) == pytest.approx(1, rel=1e-6)

    objective, values = (
        run.balancer.objective,
        {n: adapter.lora_state(n) for n in ("default", "old")},
    )
    part = type("Drawn", (), {"samples": epoch.samples, "latents": epoch.rollout.latents})()
    part.kept = {}
    points = objective.points(part, run.sigmas, seed=recipe.train.seed, inner=0, count=pairs)

    def gradient(pull_N):
        summed = {n: torch.zeros_like(g) for n, g in found.items()}
        for at in by_group(epoch.samples).values():
            weights = epoch.samples[at[0]].prefer
            rows = slice(at[0], at[-1] + 1)
            cond = adapter.encode([epoch.samples[i].prompt.text for i in at])
            with (
                adapter.swapped(sliders.at(values["default"], weights)),
                adapter.swapped(sliders.at(values["old"], weights), "old"),
            ):
                run.parts.optimizer.zero_grad(set_to_none=True)
                for j in range(pairs):
                    point: Point = points(j, rows)
                    with torch.no_grad(), adapter.using("old"):
                        point.v_old = adapter.velocity(point.x_t, point.t_B, cond)
                    with adapter.using("default"):
                        v = adapter.velocity(point.x_t, point.t_B, cond)
                    plus, minus = objective.sides(v, point)
                    half, pull = 0.5 / total, pull_N[at].to(plus)
                    ((half + pull) * plus + (half - pull) * minus).sum().backward()
                (gates,) = sliders.gates([weights])
                for name, p in run.parameters.items():
                    summed[name] += p.grad * (gates if ".lora_B." in name else 1.0)
        return summed

    expected = gradient(pull_N)
    prefer_KN = torch.tensor([s.prefer for s in epoch.samples]).T
    mean_KN = a * prefer_KN / (valid.sum(1) * pairs)[:, None]
    for k, name in enumerate(("red", "blue", "dark")):
        own = gradient(0.75 * pull_N + 0.25 * float(report.coefficients_K.sum()) * mean_KN[k])
        part_k = sliders.parts[name]
        for key, value in expected.items():
            if ".lora_B." in key:
                value[:, part_k] = own[key][:, part_k]
            else:
                value[part_k] = own[key][part_k]
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, grad in found.items():
        torch.testing.assert_close(grad, expected[name], atol=2e-4 * largest, rtol=1e-3)
    apart = [g[sliders.parts["red"]].abs().max() for n, g in found.items() if ".lora_A." in n]
    assert max(apart) > 0


def test_at_the_centre_it_is_a_training_with_fixed_weights(trainer, monkeypatch):
    """With the default weights for every prompt, and no gradient of a slider's own: those of the
    mean gradients are the roots of how many pictures each reward applies to."""
    from marble.harmonise import Steerable

    ones = lambda self, applies, seed, groups: np.ones(applies.shape)  # noqa: E731
    monkeypatch.setattr(Steerable, "preferences", ones)
    steered = trainer(*STEER, "balance.options.own=0.0")
    (row,) = steered.run_epoch()
    counts = {name: row[f"reward/{name}/applicable"] for name in ("red", "blue", "dark")}
    assert len(set(counts.values())) > 1
    weights = [f"rewards.{name}.weight={count**0.5}" for name, count in counts.items()]
    plain = trainer(*STEER, "balance.method=fixed", *weights)
    plain.run_epoch()
    for name, value in plain.parameters.items():
        torch.testing.assert_close(steered.parameters[name], value, atol=1e-6, rtol=1e-5)


def test_resumed_it_goes_on_bit_for_bit(trainer):
    unbroken = trainer(*STEER, "train.steps=4")
    unbroken.run_epoch()
    saved = unbroken.state()
    saved.tensors = {k: {n: t.clone() for n, t in v.items()} for k, v in saved.tensors.items()}
    unbroken.run_epoch()
    resumed = trainer(*STEER, "train.steps=4", random_lora=False)
    randomise(resumed.adapter, seed=9)
    resumed.load(saved)
    resumed.run_epoch()
    assert resumed.scored[0] == unbroken.scored[0]  # preferences included
    for name, value in unbroken.parameters.items():
        assert torch.equal(resumed.parameters[name], value)


@pytest.mark.parametrize("objective", ["awm", "dpo", "grpo"])
def test_every_objective_can_be_steered(trainer, objective):
    words = ["balance.options.most=2.0", f"objective.name={objective}", "data.images_per_prompt=4"]
    if objective == "grpo":
        words += ["rollout.sampler=sde", "eval.sampler=euler"]
    run = trainer("balance.method=steer", "model.lora={rank: 7, alpha: 14}", *words)
    before = run.adapter.lora_state()
    (row,) = run.run_epoch()
    assert row["skipped"] == 0 and np.isfinite(row["loss"])
    for part, rows in run.adapter.sliders.parts.items():
        moved = [
            (v[rows] - before[n][rows]).abs().max()
            for n, v in run.adapter.lora_state().items()
            if ".lora_A." in n
        ]
        assert max(moved) > 0, part


def test_what_cannot_be_steered_is_refused(toy):
    with pytest.raises(MarbleError, match=r"model\.lora\.rank=2: 3 sliders of rank 1"):
        toy.recipe("balance.method=steer")
    only = f"rewards.train=[{{name: red, reward: '{toy.rewards_file}:red'}}]"
    with pytest.raises(MarbleError, match="name at least two"):
        toy.recipe(*STEER, only)
    called = f"{{name: shared, reward: '{toy.rewards_file}:dark'}}"
    both = f"rewards.train=[{{name: red, reward: '{toy.rewards_file}:red'}}, {called}]"
    with pytest.raises(MarbleError, match="give the reward another name"):
        toy.recipe(*STEER, both)
