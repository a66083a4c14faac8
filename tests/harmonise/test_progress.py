import json

import numpy as np
import pytest

from marble.errors import MarbleError
from marble.harmonise import Harmoniser

NAMES = ("slow", "fast")
BY_BATCHES = {"beta": 0.5, "gate": True, "paired": 0, "redundancy": 0.0}
UNGATED = BY_BATCHES | {"gate": False}


def follow(balance, paths, std=1.0, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    for means in paths:
        observed = np.asarray(means) + noise * rng.standard_normal(len(means))
        balance.observe(observed, np.full(len(means), std))
    return balance.cached().coefficients_K


def climb(steps, *slopes):
    return [[slope * t for slope in slopes] for t in range(steps)]


def test_uniform_until_the_baseline_is_known():
    balance = Harmoniser("progress", NAMES, options=BY_BATCHES)
    assert not balance.needs_gram
    assert not any(balance.is_refresh(step) for step in range(20))
    np.testing.assert_array_equal(follow(balance, climb(5, 0.0, 1.0)), 0.5)


def test_formula():
    """c = softmax(−βp), p = (R̄ − R(0))/σ(0), by hand."""
    balance = Harmoniser("progress", NAMES, options={"beta": 0.7})
    path = climb(20, 0.01, 0.1)
    found = follow(balance, path, std=0.5)
    start = np.mean(path[:5], axis=0)
    mean = start.copy()
    for means in path[5:]:
        mean = 0.9 * mean + 0.1 * np.array(means)
    expected = np.exp(-0.7 * (mean - start) / 0.5)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)


def test_range_units_measure_the_way_to_the_ceiling():
    options = {"units": "range", "ranges": {"slow": (0, 1), "fast": (0, 10)}} | UNGATED
    balance = Harmoniser("progress", NAMES, options=options)
    found = follow(balance, climb(40, 0.01, 0.1))  # the same share of the way
    np.testing.assert_allclose(found, 0.5, atol=1e-3)


def test_range_units_by_hand_also_for_one_that_starts_at_its_ceiling():
    """p = (R̄ − R(0)) / max(ceiling − R(0), 5 % of the range)."""
    ranges = {"slow": (-1.0, 3.0), "fast": (0.0, 10.0)}
    options = {"beta": 2.0, "units": "range", "ranges": ranges, "paired": 0, "redundancy": 0.0}
    path = [[0.02 * t, 10.0 - 0.01 * t] for t in range(20)]
    found = follow(Harmoniser("progress", NAMES, options=options), path)
    start = np.mean(path[:5], axis=0)
    mean = start.copy()
    for means in path[5:]:
        mean = 0.9 * mean + 0.1 * np.array(means)
    expected = np.exp(-2.0 * (mean - start) / [3.0 - start[0], 0.05 * 10.0])
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)


def test_a_state_from_before_the_first_step_begins_anew():
    fresh, used = (Harmoniser("progress", NAMES, options=BY_BATCHES) for _ in range(2))
    begun = json.loads(json.dumps(fresh.state_dict()))
    follow(used, climb(20, 0.0, 1.0))
    used.load_state_dict(begun)
    assert used.state_dict() == begun
    path = climb(12, 0.3, 0.1)
    np.testing.assert_array_equal(follow(used, path), follow(fresh, path))


def test_less_progress_more_weight():
    found = follow(
        Harmoniser("progress", NAMES, options=BY_BATCHES), climb(60, 0.005, 0.05), noise=0.01
    )
    assert found[0] > 0.6
    assert found.sum() == pytest.approx(1.0)


def test_gate_keeps_unlearnable_rewards_at_the_average():
    paths = [[0.0, 0.02 * t, 0.02 * t] for t in range(100)]
    names = ("noise", "a", "b")

    def weight(gate):
        options = BY_BATCHES | {"gate": gate}
        runs = [Harmoniser("progress", names, options=options) for _ in range(10)]
        return np.mean([follow(run, paths, noise=0.2, seed=n)[0] for n, run in enumerate(runs)])

    assert weight(False) > 0.45
    assert weight(True) < 0.37


def test_gate_lets_a_falling_reward_through():
    paths = [[-0.02 * t, 0.02 * t] for t in range(100)]
    found = follow(Harmoniser("progress", NAMES, options=BY_BATCHES), paths, noise=0.1)
    assert found[0] > 0.75


def test_inapplicable_steps_are_skipped():
    plain, gappy = (Harmoniser("progress", NAMES, options=BY_BATCHES) for _ in range(2))
    for t, means in enumerate(climb(30, 0.01, 0.05)):
        plain.observe(np.array(means), np.ones(2), np.array([8, 8]))
        gappy.observe(np.array(means), np.ones(2), np.array([8, 8]))
        if t % 3 == 0:
            gappy.observe(np.array([np.nan, np.nan]), np.array([np.nan, np.nan]))
            gappy.observe(np.array([99.0, 99.0]), np.ones(2), np.array([0, 0]))
    np.testing.assert_array_equal(plain.cached().coefficients_K, gappy.cached().coefficients_K)


def test_reward_without_spread_at_first_takes_its_unit_later():
    balance = Harmoniser("progress", NAMES, options=UNGATED)
    for t in range(30):
        spread = 0.0 if t < 10 else 0.5
        balance.observe(np.array([0.0 if t < 10 else 0.1, 0.0]), np.array([spread, 0.5]))
    c = balance.cached().coefficients_K
    assert 0.4 < c[0] < 0.5


def test_solve_reports_harmony_with_its_weights():
    balance = Harmoniser("progress", NAMES, options=BY_BATCHES)
    solution = balance.solve(np.array([[1.0, -0.5], [-0.5, 1.0]]))
    np.testing.assert_array_equal(solution.coefficients_K, 0.5)
    assert solution.harmony["min"] == pytest.approx(0.5)
    assert not solution.refreshed


def test_state_round_trip_through_json():
    paths = climb(50, 0.003, 0.05)
    whole, half = (Harmoniser("progress", NAMES, options=BY_BATCHES) for _ in range(2))
    follow(whole, paths, noise=0.0)
    follow(half, paths[:23])
    resumed = Harmoniser("progress", NAMES, options=BY_BATCHES)
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    follow(resumed, paths[23:])
    np.testing.assert_array_equal(whole.cached().coefficients_K, resumed.cached().coefficients_K)
    assert whole.state_dict() == resumed.state_dict()


@pytest.mark.parametrize(
    "options",
    [
        {"beta": -1.0},
        {"units": "metres"},
        {"units": "range"},
        {"units": "range", "ranges": {"slow": (0, 1), "fast": (2, 1)}},
        {"units": "range", "ranges": {"slow": (0, 1)}},
        {"units": "range", "ranges": [(0, 1)]},
        {"decay": 1.0},
        {"warmup": 0},
        {"window": 0},
        {"redundancy": -1.0},
        {"redundancy": float("inf")},
    ],
)
def test_bad_options(options):
    with pytest.raises(MarbleError):
        Harmoniser("progress", NAMES, options=options)


def test_wrong_shapes():
    with pytest.raises(MarbleError, match="one mean and one std"):
        Harmoniser("progress", NAMES, options=BY_BATCHES).observe(np.zeros(3), np.ones(3))
