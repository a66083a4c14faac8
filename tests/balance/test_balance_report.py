"""What a step reports beside its gradient, and what outlives it."""

import json

import numpy as np
import pytest
import torch
from _literal import (
    NAN,
    advantages,
    close,
    gradients,
    make_balancer,
    make_data,
    marble_coefficients,
    min_norm,
    probability,
    run_step,
)

from marble.errors import CheckpointError


def partial_gradients(model, data, samples) -> np.ndarray:
    """Each reward's share of the step's gradient that comes from `samples`."""
    r = probability(advantages(data.rewards, data.group))
    count = (~np.isnan(r)).sum(1)
    r = np.where(np.isin(np.arange(r.shape[1]), samples), r, NAN)
    return gradients(model, data, r) * ((~np.isnan(r)).sum(1) / count)[:, None]


def cosines(direction, g) -> np.ndarray:
    return g @ direction / np.linalg.norm(g, axis=1) / np.linalg.norm(direction)


@pytest.mark.parametrize("method", ["marble", "uniform"])
def test_heldout_harmony_is_of_micro_batches_outside_the_solve(model, data, method):
    """Micro-batches 0 and 2 are solved, 1 and 3 looked at."""
    first = partial_gradients(model, data, [0, 1, 4, 5])
    second = partial_gradients(model, data, [2, 3, 6, 7])
    c = marble_coefficients(first)[1] if method == "marble" else np.ones(3) / 3
    cos = cosines(c @ first, second)
    balancer = make_balancer(model, method=method, heldout=True, measure_every=1)
    report, got = run_step(balancer, model, data, parts=4)
    assert report.harmony_heldout["min"] == pytest.approx(cos.min(), abs=1e-8)
    assert report.harmony_heldout["mean"] == pytest.approx(cos.mean(), abs=1e-8)
    assert report.harmony_heldout["conflict"] == float(cos.min() < 0)
    # The step itself still uses all of them.
    assert close(got, report.coefficients_K @ (first + second))
    assert report.harmony_heldout != report.harmony


def test_heldout_harmony_keeps_the_priorities(model, data):
    first = partial_gradients(model, data, [0, 1, 4, 5])
    second = partial_gradients(model, data, [2, 3, 6, 7])
    priorities = {"ocr": 3.0, "clip": 1.0, "taste": 1.0}
    # The solve sees g_k/π_k: cosines in proportion to π.
    pi = np.array(list(priorities.values()))
    norms = np.linalg.norm(first, axis=1)
    scaled = first / norms[:, None] / pi[:, None]
    direction = min_norm(scaled) @ scaled
    cos = cosines(direction, second)
    balancer = make_balancer(model, heldout=True, priorities=priorities)
    report, _ = run_step(balancer, model, data, parts=4)
    assert report.harmony_heldout["min"] == pytest.approx(cos.min(), abs=1e-8)


def test_heldout_needs_two_micro_batches(model, data):
    report, _ = run_step(make_balancer(model, heldout=True), model, data, parts=1)
    assert report.harmony_heldout is None and report.harmony is not None


def test_harmony_of_the_weighted_sum_is_reported(model, data):
    total = np.nansum(data.rewards.numpy(), 0)
    merged = advantages(torch.as_tensor(total)[None], data.group)
    direction = gradients(model, data, probability(merged))[0]
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    report, _ = run_step(make_balancer(model), model, data)
    assert report.harmony_sum["min"] == pytest.approx(cosines(direction, g).min(), abs=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_harmony_as_applied(model, data, scale):
    """cos(−Δθ, g_k) of what AdamW did; only after a measured step."""
    balancer = make_balancer(model)
    balancer.scale = scale
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    run_step(balancer, model, data)
    before = {p: p.detach().clone() for p in parameters}
    optimizer.step()
    delta = {p: p.detach() - before[p] for p in parameters}
    move = torch.cat([delta[p].flatten() for p in parameters]).numpy()
    applied = balancer.applied(delta)
    cos = cosines(-move, g)
    assert applied["min"] == pytest.approx(cos.min(), abs=1e-9)
    assert applied["var"] == pytest.approx(cos.var(), abs=1e-9)
    run_step(balancer, model, data, 1)
    assert balancer.applied(delta) is None


@pytest.mark.parametrize("options", [{}, {"hybrid": "gate"}, {"method": "progress"}])
def test_state_round_trip(model, data, options):
    """Through JSON into a fresh balancer: the next steps are the same to the bit."""
    options = {"every": 2, **options}
    balancer = make_balancer(model, **options)
    for step in range(3):
        run_step(balancer, model, make_data(seed=step), step)
    state = json.loads(json.dumps(balancer.state_dict()))
    fresh = make_balancer(model, **options)
    fresh.load_state_dict(state)
    for step in (3, 4, 5):
        report, wanted = run_step(balancer, model, make_data(seed=step), step)
        again, got = run_step(fresh, model, make_data(seed=step), step)
        assert (got == wanted).all()
        assert (again.alpha_K == report.alpha_K).all()


def test_state_of_other_rewards_is_refused(model):
    state = make_balancer(model).state_dict()
    with pytest.raises(CheckpointError, match=r"same balance\.method and rewards"):
        make_balancer(model, ["ocr", "clip", "other"]).load_state_dict(state)


def test_consolidation_ends_with_uniform_steps(model, data):
    balancer = make_balancer(model, consolidate=2, total_steps=12)
    run_step(balancer, model, data, 0)
    report, got = run_step(balancer, model, data, 10)
    assert not report.refreshed
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    assert close(got, g.mean(0))
