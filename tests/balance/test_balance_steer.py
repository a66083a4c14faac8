"""Masks switched off, halves that share no picture, signal and progress through the façade."""

import numpy as np
import pytest
import torch
from _literal import (
    NAMES,
    advantages,
    close,
    gradients,
    make_balancer,
    probability,
    run_step,
)

from marble.harmonise import debiased_gram
from marble.objectives import Point


def literal(model, data, rewards):
    return gradients(model, data, probability(advantages(rewards, data.group)))


@pytest.mark.parametrize("method", ["marble", "uniform"])
def test_without_masks_not_applicable_is_a_score_of_zero(model, data, method):
    zeros = torch.where(data.rewards.isnan(), 0.0, data.rewards)
    g = literal(model, data, zeros)
    diluted, got = run_step(make_balancer(model, method=method, masks=False), model, data)
    assert close(got, diluted.coefficients_K @ g)
    masked, kept = run_step(make_balancer(model, method=method), model, data)
    assert close(kept, masked.coefficients_K @ literal(model, data, data.rewards))
    assert not close(got, kept, 1e-3)


def two_timesteps(balancer, model, data, parts):
    """Every sample twice, the second pass in the same micro-batches: as a loop over timesteps."""
    batch = balancer.batch(data.rewards, data.group)
    plan = balancer.begin_step(batch, 0, micro_batches=2 * len(parts), pairs=2)
    for _ in range(2):
        for at in map(torch.tensor, parts):
            with plan.recording():
                v = model(data.x_t[at], data.t[at])
            plan.backward(
                v, Point(data.x_t[at], data.t[at], data.x_0[at], v_old=data.v_old[at]), at
            )
    return plan, plan.finish()


def test_a_sample_stays_in_its_half_at_all_timesteps(model, data):
    """Three micro-batches a pass: alternating them blindly would put each into both halves."""
    parts = ([0, 4], [1, 5, 6], [2, 3, 7])
    balancer = make_balancer(model, heldout=True)
    _ = two_timesteps(balancer, model, data, parts)
    applies = ~data.rewards.isnan()
    for slot, mine in enumerate(([0, 4, 2, 3, 7], [1, 5, 6])):
        share = applies[:, mine].sum(1) / applies.sum(1)
        np.testing.assert_allclose(balancer.gradients.share_RS[:3, slot], share, rtol=1e-12)
        r = probability(advantages(data.rewards, data.group))
        keep = np.isin(np.arange(8), mine)
        mean = gradients(model, data, np.where(keep, r, np.nan))
        found = balancer.gradients.half_gram(slot, slot)[:3, :3]
        np.testing.assert_allclose(found, mean @ mean.T, rtol=1e-8)


def test_one_micro_batch_of_samples_has_no_other_half(model, data):
    _, report = two_timesteps(make_balancer(model, heldout=True), model, data, [list(range(8))])
    assert report.harmony_heldout is None


def test_snr_tilts_alpha_by_the_signal_of_the_halves(model, data):
    parts = ([0, 1, 4, 5], [2, 3, 6, 7])
    r = probability(advantages(data.rewards, data.group))
    means = [gradients(model, data, np.where(np.isin(np.arange(8), p), r, np.nan)) for p in parts]
    blocks = np.array([[a @ b.T for b in means] for a in means])
    signal = np.clip(debiased_gram(blocks).signal_K, 0.05, 1.0)
    _, plain = two_timesteps(make_balancer(model), model, data, parts)
    _, tilted = two_timesteps(make_balancer(model, snr=1.0), model, data, parts)
    wanted = plain.alpha_raw_K * signal
    np.testing.assert_allclose(tilted.alpha_raw_K, wanted / wanted.sum(), rtol=1e-6)


def test_a_reward_that_only_one_half_knows_keeps_its_plain_norm(model, data):
    """Reward 1 applies to the first four samples, which are one half of the step."""
    r = probability(advantages(data.rewards, data.group))
    parts = ([0, 1, 2, 3], [4, 5, 6, 7])
    means = [
        gradients(model, data, np.where(np.isin(np.arange(8), p), r, np.nan)) for p in parts[:1]
    ]
    rest = np.where(np.isin(np.arange(8), parts[1]), r, np.nan)
    rest[1] = r[1]  # the same gradient in both halves
    means.append(gradients(model, data, rest))
    wanted = debiased_gram(np.array([[a @ b.T for b in means] for a in means]))
    balancer = make_balancer(model, debias=True)
    seen = {}
    solve = balancer.harmoniser.solve
    balancer.harmoniser.solve = lambda gram, *rest, **more: (
        seen.update(gram=gram, **more) or solve(gram, *rest, **more)
    )
    two_timesteps(balancer, model, data, parts)
    np.testing.assert_allclose(seen["gram"], wanted.gram_KK, rtol=1e-7)
    assert seen["gram"][1, 1] == pytest.approx(means[0][1] @ means[0][1])
    assert np.isnan(seen["signal_K"][1]) and np.isfinite(seen["signal_K"][[0, 2]]).all()


def test_hybrid_sees_the_rewards_of_every_step(model, data):
    options = {
        "hybrid": "gate",
        "progress": {"beta": 0.5, "redundancy": 0.0, "warmup": 1},
        "every": 1,
    }
    balancer = make_balancer(model, **options)
    for step in range(6):
        run_step(balancer, model, data, step)
        data.rewards[0] += 5.0  # "ocr" runs away
    progress = balancer.harmoniser.steer.progress.judged(len(NAMES))
    assert progress[0] > 0 and progress[1] == progress[2] == 0
    again = make_balancer(model, **options)
    again.load_state_dict(balancer.state_dict())
    assert close(run_step(again, model, data, 6)[1], run_step(balancer, model, data, 6)[1])
