"""The façade's gradient against the method written out literally."""

import numpy as np
import pytest
import torch
from _literal import (
    A_MAX,
    NAMES,
    NAN,
    advantages,
    close,
    common_pull,
    grad,
    gradients,
    kl_gradient,
    make_balancer,
    make_data,
    make_model,
    marble_coefficients,
    probability,
    run_step,
    sized,
)

from marble.balance.gates import only, stages
from marble.harmonise import get_rule
from marble.objectives import Point


@pytest.fixture
def g(model, data):
    """The three gradients, from three separate backwards."""
    return gradients(model, data, probability(advantages(data.rewards, data.group)))


def test_the_data_has_conflict_masks_and_clamps(data, g):
    adv = advantages(data.rewards, data.group)
    assert np.nanmax(adv) > A_MAX and np.isnan(adv).sum() == 4
    unit = g / np.linalg.norm(g, axis=1, keepdims=True)
    assert (unit @ unit.T).min() < 0


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_refresh_step(model, data, g, parts):
    alpha, c = marble_coefficients(g)
    report, got = run_step(make_balancer(model), model, data, parts=parts)
    assert report.refreshed and report.finite
    assert close(got, c @ g)
    np.testing.assert_allclose(report.alpha_raw_K, alpha, atol=1e-9)
    np.testing.assert_allclose(report.alpha_K, 0.7 / 3 + 0.3 * alpha, atol=1e-9)
    np.testing.assert_allclose(report.norms_K, np.linalg.norm(g, axis=1), rtol=1e-10)
    cos = (g @ (c @ g)) / np.linalg.norm(g, axis=1) / np.linalg.norm(c @ g)
    assert report.harmony["min"] == pytest.approx(cos.min(), abs=1e-9)
    assert report.harmony["var"] == pytest.approx(cos.var(), abs=1e-9)
    assert 0 <= report.gap < 1e-10


@pytest.mark.parametrize("amortise", ["paper", "normalised"])
def test_amortised_steps(model, data, g, amortise):
    alpha, _ = marble_coefficients(g)
    smooth = 0.7 / 3 + 0.3 * alpha
    norms = np.linalg.norm(g, axis=1)
    c = smooth if amortise == "paper" else smooth * norms.mean() / norms
    balancer = make_balancer(model, amortise=amortise)
    run_step(balancer, model, data, 0)
    for step in (1, 9):
        report, got = run_step(balancer, model, data, step)
        assert not report.refreshed and report.harmony is None and report.norms_K is None
        assert close(got, c @ g)
    assert run_step(balancer, model, data, 10)[0].refreshed


@pytest.mark.parametrize("probe", [0.25, 0.5, 0.75])
def test_probe_solves_on_a_part_and_sums_exactly(model, data, g, probe):
    """Coefficients from the first micro-batches' gradients, the step from all of them."""
    balancer = make_balancer(model, probe=probe)
    report, got = run_step(balancer, model, data, parts=4)
    assert close(got, report.coefficients_K @ g)
    # Of the probe alone: means over the whole step's counts, so only partial sums.
    r = probability(advantages(data.rewards, data.group))
    seen = int(8 * probe)
    count = (~np.isnan(r)).sum(1)
    masked = np.where(np.arange(8)[None] < seen, r, NAN)
    part = gradients(model, data, masked) * ((~np.isnan(masked)).sum(1) / count)[:, None]
    np.testing.assert_allclose(report.coefficients_K, marble_coefficients(part)[1], rtol=1e-7)


@pytest.mark.parametrize("masked", [1, 2])
def test_target_reward(model, data, masked):
    """h_k are balanced, the common pull W is outside; both kinds of step. The combined advantage
    has the size of one reward's, whichever reward does not apply everywhere."""
    data.rewards = data.rewards[[0, 3 - masked, masked]]
    r = probability(advantages(data.rewards, data.group))
    full = gradients(model, data, r)
    half = gradients(model, data, np.where(np.isnan(r), NAN, 0.5))
    h, pull = full - half, common_pull(model, data)
    alpha, c = marble_coefficients(h)
    balancer = make_balancer(model, target="reward")
    report, got = run_step(balancer, model, data)
    assert close(got, sized(c, r) @ h + pull, 1e-9)
    report, got = run_step(balancer, model, data, 1)
    assert close(got, report.coefficients_K @ h + pull)
    np.testing.assert_allclose(report.coefficients_K, sized(0.7 / 3 + 0.3 * alpha, r), atol=1e-8)


def test_how_many_rewards_there_are_does_not_dilute_the_step(model, data):
    """Copies of a reward: averaged with itself, each method's step is that of the reward alone."""
    data.rewards = data.rewards[:1].expand(3, -1).clone()
    alone = make_data()
    alone.rewards = data.rewards[:1]
    _, wanted = run_step(make_balancer(model, ["ocr"], target="reward"), model, alone)
    for method in ("marble", "uniform", "progress", "upgrad"):
        _, got = run_step(make_balancer(model, method=method, target="reward"), model, data)
        assert close(got, wanted), method


@pytest.mark.parametrize("target", ["full", "reward"])
def test_samples_without_any_reward_take_no_part(model, data, target):
    """A group that no reward applies to changes nothing, in refresh and in ordinary steps."""
    data.rewards[:, 4:] = NAN
    alone = make_data()
    for name in ("x_0", "x_t", "t", "noise", "v_old", "v_ref", "group"):
        setattr(alone, name, getattr(alone, name)[:4])
    alone.rewards = data.rewards[:, :4]
    with_them = make_balancer(model, target=target)
    without = make_balancer(model, target=target)
    for step in (0, 1):
        _, got = run_step(with_them, model, data, step)
        _, wanted = run_step(without, model, alone, step)
        assert close(got, wanted)


@pytest.mark.parametrize("method", ["weighted_sum", "gdpo"])
@pytest.mark.parametrize("measure_every", [0, 1])
def test_merged_methods_are_single_advantage_training(model, data, method, measure_every):
    weights = np.array([1.0, 2.0, 0.5])
    if method == "weighted_sum":
        total = np.nansum(weights[:, None] * data.rewards.numpy(), 0)
        merged = advantages(torch.as_tensor(total)[None], data.group)[0]
    else:
        total = np.nansum(weights[:, None] * advantages(data.rewards, data.group), 0)
        merged = total / (total.std() + 1e-4)
    wanted = gradients(model, data, probability(merged)[None])[0]
    balancer = make_balancer(
        model, method=method, weights=dict(zip(NAMES, weights)), measure_every=measure_every
    )
    report, got = run_step(balancer, model, data, 0)
    assert close(got, wanted)
    assert (report.harmony is not None) == bool(measure_every)
    if measure_every:
        assert report.harmony == report.harmony_sum or method == "gdpo"


@pytest.mark.parametrize("measure_every", [0, 1])
def test_single_is_plain_training_on_one_reward(model, data, g, measure_every):
    balancer = make_balancer(model, method="single", gate=only(3, 1), measure_every=measure_every)
    _, got = run_step(balancer, model, data)
    assert close(got, g[1])


def test_uniform_and_fixed(model, data, g):
    uniform = make_balancer(model, method="uniform")
    assert close(run_step(uniform, model, data)[1], g.mean(0))
    forced = make_balancer(model, method="marble")  # ᾱ = 1/K before the first solve
    assert close(run_step(forced, model, data, 1)[1], g.mean(0))
    fixed = make_balancer(
        model, method="fixed", weights={"ocr": 3, "clip": 1, "taste": 0}, measure_every=1
    )
    assert close(run_step(fixed, model, data)[1], 0.75 * g[0] + 0.25 * g[1])


def test_dropout_and_sequential(model, data, g):
    gate = get_rule("dropout", rate=0.5).gate(3, 4)
    balancer = make_balancer(model, method="dropout", gate=gate)
    for step in (7, 2, 7):
        kept = gate(step)
        assert kept.any() and (kept == get_rule("dropout").gate(3, 4)(step)).all()
        assert close(run_step(balancer, model, data, step)[1], g[kept].mean(0))
    assert len({tuple(gate(step)) for step in range(40)}) >= 5
    gate = stages(3, [0, 3], [[0], [1, 2]])
    balancer = make_balancer(model, method="sequential", gate=gate)
    for step, wanted in ((2, g[0]), (3, g[1:].mean(0)), (100, g[1:].mean(0))):
        assert close(run_step(balancer, model, data, step)[1], wanted)


@pytest.mark.parametrize("target", ["full", "reward"])
@pytest.mark.parametrize("method", ["marble", "uniform"])
def test_kl_is_added_outside_the_balance(model, data, target, method):
    kl = 0.37
    options = {"method": method, "target": target}
    with_kl, without = make_balancer(model, **options), make_balancer(model, **options)
    penalty = kl_gradient(model, data)
    for step in (0, 1):
        report, got = run_step(with_kl, model, data, step, kl=kl)
        plain, base = run_step(without, model, data, step)
        assert close(got, base + kl * penalty)
        np.testing.assert_allclose(report.coefficients_K, plain.coefficients_K, rtol=1e-9)
        v = model(data.x_t, data.t)
        assert report.kl == pytest.approx((v - data.v_ref).square().mean().item())
        assert report.old_deviation == pytest.approx((v - data.v_old).square().mean().item())
        assert np.isnan(plain.kl)


@pytest.mark.parametrize("method", ["marble", "uniform"])
def test_a_penalty_of_weight_0_has_no_part_in_the_step(model, data, method):
    """Whatever v_ref holds: a base that overflows must not cost the step."""
    _, wanted = run_step(make_balancer(model, method=method), model, data)
    balancer = make_balancer(model, method=method)
    model.zero_grad()
    plan = balancer.begin_step(balancer.batch(data.rewards, data.group), 0, micro_batches=1)
    with plan.recording():
        v = model(data.x_t, data.t)
    over = torch.full_like(v, torch.inf).detach()
    point = Point(data.x_t, data.t, data.x_0, v_old=data.v_old, v_ref=over, kl=0.0)
    plan.backward(v, point, torch.arange(len(data.t)))
    report = plan.finish()
    assert report.finite and np.isnan(report.kl)
    assert close(grad(model), wanted)


def test_kl_on_some_micro_batches_reports_their_mean(model, data):
    """Every second micro-batch with twice the weight: the gradient of those, the mean of those."""
    balancer = make_balancer(model, method="uniform")
    model.zero_grad()
    plan = balancer.begin_step(balancer.batch(data.rewards, data.group), 0, micro_batches=2)
    for number, at in enumerate(torch.arange(8).chunk(2)):
        v = model(data.x_t[at], data.t[at])
        point = Point(
            data.x_t[at], data.t[at], data.x_0[at],
            v_old=data.v_old[at], v_ref=data.v_ref[at] if number else None, kl=2.0,
        )  # fmt: skip
        plan.backward(v, point, at)
        squared = (v - data.v_ref[at]).square().mean()
    assert plan.finish().kl == pytest.approx(squared.item())


@pytest.mark.parametrize("scale", [4096.0, 0.5])
def test_loss_scale_changes_nothing(model, data, g, scale):
    plain, scaled = make_balancer(model), make_balancer(model)
    scaled.scale = scale
    for step in (0, 1):
        report, wanted = run_step(plain, model, data, step, kl=0.1)
        other, got = run_step(scaled, model, data, step, kl=0.1)
        assert close(got, wanted)
    assert other.alpha_K == pytest.approx(report.alpha_K)


def test_several_timesteps_a_sample_are_averaged(model, data, g):
    """Each sample twice with the same timestep: the same mean as once."""
    for step in (0, 1):
        balancer = make_balancer(model, amortise="normalised")
        batch = balancer.batch(data.rewards, data.group)
        model.zero_grad()
        plan = balancer.begin_step(batch, step, micro_batches=2, pairs=2)
        for _ in range(2):
            with plan.recording():
                v = model(data.x_t, data.t)
            plan.backward(v, Point(data.x_t, data.t, data.x_0, v_old=data.v_old), torch.arange(8))
        plan.finish()
        got = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]).numpy()
        fresh = make_balancer(model, amortise="normalised")
        assert close(got, run_step(fresh, model, data, step)[1])


def test_part_of_an_epoch(model, data):
    """batch.select: advantages of the whole epoch, means over the chosen samples."""
    chosen = torch.tensor([0, 2, 3, 5, 6])
    r = probability(advantages(data.rewards, data.group))[:, chosen.numpy()]
    part = make_data()
    for name in ("x_0", "x_t", "t", "noise", "v_old", "v_ref"):
        setattr(part, name, getattr(data, name)[chosen])
    g = gradients(model, part, r)
    for method, c in (("uniform", np.ones(3) / 3), ("marble", marble_coefficients(g)[1])):
        balancer = make_balancer(model, method=method)
        batch = balancer.batch(data.rewards, data.group).select(chosen)
        _, got = run_step(balancer, model, part, batch=batch)
        assert close(got, c @ g)


def test_fp32_model(data, g):
    model = make_model(dtype=torch.float32)
    single = make_data(dtype=torch.float32)
    _, got = run_step(make_balancer(model), model, single)
    assert close(got, marble_coefficients(g)[1] @ g, 1e-4)
    _, got = run_step(make_balancer(model), model, single, 1)
    assert close(got, g.mean(0), 1e-5)
