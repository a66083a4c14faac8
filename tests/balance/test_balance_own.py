"""Parameters that belong to one reward, and teachers: both in fp64 against plain autograd."""

import numpy as np
import pytest
import torch
from _literal import (
    A_MAX,
    BETA,
    NAMES,
    advantages,
    close,
    common_pull,
    flat,
    grad,
    gradients,
    probability,
    run_step,
)

from marble import Balancer
from marble.harmonise import Steerable
from marble.objectives import NFT, Point, objective_class

OWN = 0.3


def shares(model):
    """Reward 0 has the first row of every factor, reward 2 the second of some, reward 1 nothing."""
    found = []
    for k in range(3):
        masks = {p: torch.zeros_like(p, dtype=torch.bool) for p in trained(model)}
        for number, (_, mask) in enumerate(masks.items()):
            if k == 0 or (k == 2 and number % 2):
                mask[0 if k == 0 else 1] = True
        found.append(masks)
    return found


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("target", ["full", "reward"])
@pytest.mark.parametrize("step", [0, 1], ids=["looked at", "in between"])
@pytest.mark.parametrize("options", [{}, {"heldout": True}], ids=["whole", "halves"])
def test_own_parameters_follow_their_reward(model, data, target, step, options):
    objective, own = NFT(beta=BETA, a_max=A_MAX), shares(model)
    balancer = Balancer(
        model, NAMES, method="steer", objective=objective, target=target, shares=own,
        probe=0.5, measure_every=10, options={"own": OWN}, **options,
    )  # fmt: skip
    run_step(balancer, model, data, 0)
    report, found = run_step(balancer, model, data, step, parts=4)
    assert (report.harmony is not None) == (step == 0)
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    outside = 0.0
    if target == "reward":  # what is common to all rewards is outside
        half = np.where(data.rewards.isnan(), np.nan, 0.5)
        g, outside = g - gradients(model, data, half), common_pull(model, data)
    c = report.coefficients_K
    expected = c @ g
    for k in (0, 2):
        place = torch.cat([own[k][p].flatten() for p in trained(model)]).numpy()
        mixed = (1 - OWN) * c + OWN * c.sum() * np.eye(3)[k]
        expected[place] = (mixed @ g)[place]
    assert close(found, expected + outside)
    assert not close(found, c @ g + outside, 1e-3)


def test_without_a_part_of_its_own_nothing_changes(model, data):
    """Then it has fixed weights: the roots of how many samples each reward applies to."""
    roots = dict(zip(NAMES, (~data.rewards.isnan()).sum(1).double().sqrt().tolist()))
    assert len(set(roots.values())) > 1
    plain = Balancer(model, NAMES, method="fixed", weights=roots)
    steered = Balancer(model, NAMES, method="steer", shares=shares(model), options={"own": 0.0})
    for step in range(2):
        (one, a), (two, b) = (run_step(x, model, data, step) for x in (plain, steered))
        assert close(a, b) and not one.refreshed and not two.refreshed
    assert not steered.measures(1) and Steerable(own=0.5).own == 0.5


@pytest.mark.parametrize("step", [0, 1], ids=["recorded", "one backward"])
@pytest.mark.parametrize("method", ["marble", "uniform", "weighted_sum"])
def test_a_teachers_gradient_is_that_of_its_samples(model, data, method, step):
    taught = torch.tensor([1, 1, 0, 0, 2, 2, 2, 0])
    teacher = torch.randn(
        data.x_0.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    balancer = Balancer(model, NAMES, method=method, objective=objective_class("distil")())
    asked = torch.where(taught[None] == torch.arange(3)[:, None], 1.0, torch.nan).double()
    batch = balancer.batch(data.rewards, data.group).asking(asked)
    for number in range(step + 1):
        plan = balancer.begin_step(batch, number, micro_batches=2)
        model.zero_grad()
        for at in torch.arange(8).chunk(2):
            with plan.recording():
                v = model(data.x_t[at], data.t[at])
            point = Point(data.x_t[at], data.t[at], data.x_0[at], v_teacher=teacher[at])
            plan.backward(v, point, at)
        report = plan.finish()

    def mean_of(chosen):
        v = model(data.x_t, data.t)
        losses = [((v[i] - teacher[i]) ** 2).sum() / 12 for i in chosen]
        return flat(model, sum(losses) / len(losses))

    g = np.array([mean_of(np.flatnonzero(taught == k)) for k in range(3)])
    expected = mean_of(range(8)) if method == "weighted_sum" else report.coefficients_K @ g
    assert close(grad(model), expected)


def test_what_is_asked_stays_with_the_samples(model, data):
    batch = Balancer(model, NAMES).batch(data.rewards, data.group)
    assert batch.asking(batch.adv.adv_KN) is batch
    asked = torch.full((3, 8), torch.nan).double()
    asked[1, :4] = 1.0
    part = batch.asking(asked).select(torch.tensor([3, 4]))
    assert part.adv.valid_KN.tolist() == [[False, False], [True, False], [False, False]]
    assert part.merged_N[0] == 1 and part.merged_N[1].isnan()
