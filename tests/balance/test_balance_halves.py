"""Masks switched off, halves that share no picture, progress through the façade."""

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
    progress = balancer.harmoniser.gated.progress.judged(len(NAMES))
    assert progress[0] > 0 and progress[1] == progress[2] == 0
    again = make_balancer(model, **options)
    again.load_state_dict(balancer.state_dict())
    assert close(run_step(again, model, data, 6)[1], run_step(balancer, model, data, 6)[1])
