"""What mutants of the engine survived once: see scripts/mutate.py."""

import numpy as np
import pytest
import torch
from _literal import (
    NAN,
    Data,
    advantages,
    close,
    gradients,
    make_balancer,
    make_data,
    probability,
    run_step,
)

from marble.harmonise import get_rule
from marble.jacobian.linear import PerSampleLinear

SEED = 3


@pytest.mark.parametrize("size", [3e-6, 3e-5])
def test_the_floor_of_the_loss_weight(model, data, size):
    """Errors under 1e-5 are divided by 1e-5, larger ones by themselves: against autograd."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(2, *data.x_t.shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        v_old = model(data.x_t, data.t) + size * noise[0]
    x_0 = data.x_t - data.t.view(-1, 1, 1) * v_old + size * noise[1]
    near = Data(data.rewards, data.group, x_0, data.x_t, data.t, data.noise, v_old, data.v_ref)
    g = gradients(model, near, probability(advantages(near.rewards, near.group)))
    for step in (0, 1):  # a refresh, and a step in between
        report, got = run_step(make_balancer(model, method="uniform"), model, near, step)
        assert close(got, report.coefficients_K @ g, 1e-8)


@pytest.mark.parametrize("step", [0, 1])
def test_the_common_pull_is_over_samples_that_some_reward_applies_to(model, data, step):
    """target=reward: no reward applies to samples 3 and 6, and each applies to others than the
    rest; W is the mean over the six that are left."""
    data.rewards[:, [3, 6]] = NAN
    data.rewards[0, :2] = NAN
    r = probability(advantages(data.rewards, data.group))
    half = np.where(np.isnan(r), NAN, 0.5)
    driven = gradients(model, data, r) - gradients(model, data, half)
    present = np.where(np.isnan(r).all(0), NAN, 0.5)
    assert np.isnan(present).sum() == 2
    pull = gradients(model, data, present[None])[0]
    balancer = make_balancer(model, target="reward")
    report, got = run_step(balancer, model, data, 0, parts=3)
    if step:
        report, got = run_step(balancer, model, data, step, parts=3)
    assert report.refreshed == (step == 0)
    assert close(got, report.coefficients_K @ driven + pull, 1e-9)


def products(model, data, halves):
    """[2, 2, K, K] of the mean gradients of two halves of the samples, by K backwards for each."""
    r = probability(advantages(data.rewards, data.group))
    at = np.arange(len(data.t))
    means = [gradients(model, data, np.where(np.isin(at, half), r, NAN)) for half in halves]
    return np.array([[a @ b.T for b in means] for a in means])


def recorded(model, data, parts):
    """The same as a step has kept them."""
    balancer = make_balancer(model, heldout=True)
    run_step(balancer, model, data, parts=parts)
    k = len(balancer.names)
    pairs = [[balancer.gradients.half_gram(a, b)[:k, :k] for b in (0, 1)] for a in (0, 1)]
    return np.array(pairs)


def test_halves_of_different_size(model):
    """Six samples in one half, eighteen in the other: each half's gradient is its own mean."""
    data = make_data(n=24, seed=SEED)
    parts = ([0, 1, 2, 3, 12, 13], [i for i in range(24) if i not in (0, 1, 2, 3, 12, 13)])
    np.testing.assert_allclose(
        recorded(model, data, parts), products(model, data, parts), rtol=1e-7, atol=1e-12
    )


def test_micro_batches_are_dealt_to_the_halves_in_turn(model):
    """0, 2, 4 to one half and 1, 3 to the other."""
    data = make_data(n=20, masked=False, seed=SEED)
    parts = [list(range(4 * i, 4 * i + 4)) for i in range(5)]
    halves = [[i for part in parts[start::2] for i in part] for start in (0, 1)]
    found = recorded(model, data, parts)
    np.testing.assert_allclose(found, products(model, data, halves), rtol=1e-7, atol=1e-12)
    other = [halves[0][:8], [*halves[0][8:], *halves[1]]]
    assert not np.allclose(found, products(model, data, other), rtol=1e-3)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.9])
def test_dropout_at_any_rate(rate):
    """Each of five rewards sits out `rate` of the steps, but for steps that would have nobody."""
    gate = get_rule("dropout", rate=rate).gate(5, 3)
    kept = np.array([gate(step) for step in range(4000)])
    wanted = 1 - rate + rate**5 / 5  # one of the five stays where all would sit out
    np.testing.assert_allclose(kept.mean(0), wanted, atol=0.035)
    assert kept.any(1).all()
    pairs = (kept[:, 0] & kept[:, 1]).mean()
    if rate <= 0.3:  # independently of each other
        assert pairs == pytest.approx((1 - rate) ** 2, abs=0.035)


def test_per_sample_sums_in_low_precision_are_kept_in_fp32():
    """Sums over 400 tokens of bf16 products: as exact as fp32, not rounded to bf16's 3 digits."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 400, 8, generator=generator).bfloat16()
    weight = torch.randn(6, 8, generator=generator).bfloat16()
    delta = torch.randn(2, 400, 6, generator=generator).bfloat16()
    probe = torch.zeros(1, dtype=torch.float32).expand(2, 6, 8).requires_grad_()
    y = PerSampleLinear.apply(x.requires_grad_(), weight, probe)
    (found,) = torch.autograd.grad(y, probe, delta)
    assert found.dtype == torch.float32
    exact = torch.einsum("bto,bti->boi", delta.double(), x.detach().double())
    assert float((found - exact).abs().max() / exact.abs().max()) < 1e-6
