"""Progress beside a Gram method: formulas by hand, and properties over random solves."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.errors import MarbleError
from marble.harmonise import Harmoniser, gate

from ._asserts import assert_on_simplex
from ._inputs import DETERMINED, gram, jacobians

NAMES = ("loner", "a", "b")
# a and b agree, the loner is orthogonal to both: min-norm gives the loner the most.
TWINS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.9], [0.0, 0.9, 1.0]])


def climb(balance, slopes, steps=40):
    for t in range(steps):
        balance.observe(np.array(slopes) * t, np.ones(len(slopes)))
    return balance


def gated(names=NAMES, **more):
    return Harmoniser(
        "marble", names, hybrid="gate", progress={"beta": 1.0, "redundancy": 0.0}, **more
    )


def test_gate_by_hand():
    alpha = np.array([0.5, 0.25, 0.25])
    # Favoured: the first, by 1/6. Discounted: the others, equally. Lead = 3 − (0 + 1)/2.
    assert gate(alpha, np.array([3.0, 0.0, 1.0]), 0.4) == pytest.approx(np.exp(-0.4 * 2.5))
    assert gate(alpha, np.array([-3.0, 0.0, 1.0]), 0.4) == 1.0
    assert gate(np.full(3, 1 / 3), np.array([9.0, 0.0, 0.0]), 0.4) == 1.0


@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_gate_properties(k, seed, beta):
    rng = np.random.default_rng(seed)
    alpha, progress = rng.dirichlet(np.ones(k)), 3 * rng.standard_normal(k)
    open_ = gate(alpha, progress, beta)
    assert 0.0 <= open_ <= 1.0
    order = rng.permutation(k)
    assert gate(alpha[order], progress[order], beta) == pytest.approx(open_)
    assert gate(alpha, progress + 7.0, beta) == pytest.approx(open_)  # only leads count
    assert gate(alpha, np.zeros(k), beta) == pytest.approx(1.0)


def test_the_discount_holds_while_the_loner_lags_and_ends_when_it_runs_away():
    published = Harmoniser("marble", NAMES).solve(TWINS).alpha_raw_K
    assert published[0] > 0.45
    lagging = climb(gated(), (0.0, 0.1, 0.1)).solve(TWINS).coefficients_K
    np.testing.assert_allclose(lagging, published, atol=1e-12)
    ahead = climb(gated(), (0.3, 0.0, 0.0))
    progress = ahead.gated.progress.current(np.ones(3))
    open_ = gate(published, ahead.gated.progress.judged(3), 1.0)
    assert open_ < 0.01
    found = ahead.solve(TWINS)
    wanted = open_ * published + (1 - open_) * progress
    np.testing.assert_allclose(found.coefficients_K, wanted, atol=1e-12)
    np.testing.assert_allclose(found.alpha_raw_K, published, atol=1e-12)  # the rule's own answer
    assert found.coefficients_K[0] < 0.01


def test_the_gate_moves_between_solves():
    balance = gated(rho=0.0)
    published = balance.solve(TWINS).alpha_raw_K
    np.testing.assert_allclose(balance.cached(1).coefficients_K, published, atol=1e-12)
    climb(balance, (0.3, 0.0, 0.0))
    assert balance.cached(2).coefficients_K[0] < 0.01  # no new Gram matrix was needed
    silent = balance.cached(3, np.array([True, True, False])).coefficients_K
    assert silent[2] == 0.0 and silent.sum() == pytest.approx(1.0)


@given(jacobians(DETERMINED, min_k=2, max_k=8))
@settings(max_examples=40, deadline=None)
def test_without_progress_a_hybrid_is_its_rule(rows):
    names = [f"r{k}" for k in range(len(rows))]
    plain = Harmoniser("marble", names).solve(gram(rows)).coefficients_K
    steered = gated(names)
    close = {"rtol": 1e-6, "atol": 1e-9 * np.abs(plain).max()}
    np.testing.assert_allclose(steered.solve(gram(rows)).coefficients_K, plain, **close)
    climb(steered, np.full(len(rows), 0.1))  # all the same: nobody is ahead
    np.testing.assert_allclose(steered.solve(gram(rows)).coefficients_K, plain, **close)


@given(
    jacobians(min_k=2, max_k=8),
    st.sampled_from(["none", "gate"]),
    st.sampled_from(["marble", "upgrad", "cagrad"]),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_weights_stay_on_the_simplex(rows, kind, method, seed):
    rng = np.random.default_rng(seed)
    names = [f"r{k}" for k in range(len(rows))]
    balance = Harmoniser(method, names, hybrid=kind)
    climb(balance, 0.2 * rng.standard_normal(len(rows)))
    found = balance.solve(gram(rows))
    assert np.isfinite(found.coefficients_K).all()
    if method == "marble":
        assert_on_simplex(found.alpha_raw_K)
    assert found.alpha_raw_K.sum() == pytest.approx(1.0)


def test_state_survives_json_and_trial_leaves_no_trace():
    whole, half = (gated() for _ in range(2))
    for balance in (whole, half):
        climb(balance, (0.05, 0.01, 0.0), 20)
        balance.solve(TWINS)
    half.trial(TWINS)
    resumed = gated()
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    for balance in (whole, resumed):
        climb(balance, (0.05, 0.01, 0.0), 10)
    np.testing.assert_array_equal(
        whole.solve(TWINS).coefficients_K,
        resumed.solve(TWINS).coefficients_K,
    )
    assert whole.state_dict() == resumed.state_dict()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hybrid": "priorities"}, "choose 'none' or 'gate'"),
        ({"hybrid": "gate", "progress": {"betta": 1}}, "beta"),
        ({"method": "uniform", "hybrid": "gate"}, "Gram method"),
        ({"hybrid": "gate", "floors": {"a": 0.0}}, "take one"),
    ],
)
def test_mistakes(options, said):
    with pytest.raises(MarbleError, match=said):
        Harmoniser(**{"method": "marble", "names": NAMES, **options})
