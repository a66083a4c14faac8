"""Shrinkage: differences between rewards count as far as they are more than error."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from marble.harmonise._paired import shrunk

NAN = np.nan
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed, unknown=0.2):
    """(p, errors, trust): errors from far below to far above the differences between rewards."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 9))
    p, error = rng.standard_normal(k), 10 ** rng.uniform(-3, 1) * rng.uniform(0.1, 1, k)
    trust = np.where(rng.random(k) < 0.2, 0.0, rng.uniform(0.05, 1, k))
    out = rng.random(k) < unknown
    return np.where(out, NAN, p), np.where(out, NAN, error), np.where(out, 1.0, trust)


def normal(x, variance):
    return np.exp(-0.5 * x**2 / variance) / np.sqrt(variance)


def by_quadrature(p, error):
    """All trusted: the posterior mean of each reward's progress, by brute force.

    p_k ~ N(θ_k, e_k²), θ_k ~ N(μ, τ²), μ flat, τ half-Cauchy of scale 0.2: a fine grid over μ and
    τ, and the textbook's conditional mean of θ_k at each point.
    """
    angle = (np.arange(2000) + 0.5) / 2000 * np.pi / 2
    middle, wide = np.median(p), 30 * (np.ptp(p) + error.max())
    total, out = 0.0, np.zeros(len(p))
    mu = middle + wide * np.linspace(-1, 1, 6001)
    for tau in 0.2 * np.tan(angle):
        likely = np.prod([normal(p_k - mu, tau**2 + e**2) for p_k, e in zip(p, error)], 0)
        total += likely.sum()
        for k, (p_k, e) in enumerate(zip(p, error)):
            out[k] += (likely * (p_k * tau**2 + mu * e**2) / (tau**2 + e**2)).sum()
    return out / total


def with_mean(p, error, trust):
    """Shrunk p and the mean, which is what an unknown reward counts as."""
    found = shrunk(np.append(p, NAN), np.append(error, NAN), np.append(trust, 1.0))
    return found[:-1], found[-1]


@pytest.mark.parametrize(
    "p, error",
    [
        ([0.5, 0.3, 0.2, 0.19, 0.28], [0.07, 0.07, 0.03, 0.03, 0.035]),
        ([0.1, 0.05, 0.08, 0.02], [0.07, 0.07, 0.03, 0.03]),
        ([0.4, 0.1, -0.2], [0.3, 0.2, 0.1]),
    ],
)
def test_against_the_posterior_mean_by_quadrature(p, error):
    p, error = np.array(p), np.array(error)
    expected = by_quadrature(p, error)
    np.testing.assert_allclose(shrunk(p, error, np.ones(len(p))), expected, atol=2e-3)
    assert np.abs(expected - p).max() > 5e-3  # it is not p


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_within_what_was_measured(seed):
    p, error, trust = drawn(seed)
    found, mean = with_mean(p, error, trust)
    np.testing.assert_allclose(found[np.isnan(p) | (trust == 0)], mean)
    counted = p[np.isfinite(p) & (trust > 0)]
    if len(counted):
        assert counted.min() - 1e-9 <= found.min() and found.max() <= counted.max() + 1e-9


@given(SEEDS, st.floats(-10, 10))
@settings(max_examples=60, deadline=None)
def test_origin_and_order_do_not_matter(seed, offset):
    p, error, trust = drawn(seed)
    assume((np.isfinite(p) & (trust > 0)).any())
    plain = shrunk(p, error, trust)
    other = shrunk(p + offset, error, trust)
    np.testing.assert_allclose(other, plain + offset, rtol=1e-7, atol=1e-7)
    order = np.random.default_rng(seed).permutation(len(p))
    moved = shrunk(p[order], error[order], trust[order])
    np.testing.assert_allclose(moved, plain[order], rtol=1e-9, atol=1e-12)


@given(SEEDS, st.floats(1.5, 10))
@settings(max_examples=60, deadline=None)
def test_larger_errors_shrink_more(seed, factor):
    p, error, _ = drawn(seed, unknown=0.0)
    one = np.ones(len(p))
    assert np.ptp(shrunk(p, factor * error, one)) <= np.ptp(shrunk(p, error, one)) + 1e-9


def test_does_not_jump():
    """The likeliest τ² is 0 below some difference; what it may be does not end there."""
    error, one = np.full(5, 0.05), np.ones(5)
    spread = [
        np.ptp(shrunk(np.array([0.2, 0.2, 0.2, 0.2, 0.2 - d]), error, one))
        for d in np.linspace(0, 0.4, 81)
    ]
    steps = np.diff(spread)
    assert (steps > 0).all()
    assert steps.max() < 0.01  # of 0.005 of p each


@pytest.mark.parametrize("p", [[0.3, -0.2, 1.5], [0.5, 0.5, 0.5]])
def test_without_errors_p_stays(p):
    p = np.array(p)
    np.testing.assert_allclose(shrunk(p, np.zeros(3), np.ones(3)), p, rtol=1e-9)


@pytest.mark.parametrize("trust", [[1.0, 1.0, 1.0], [1.0, 0.5, 0.1]])
def test_with_huge_errors_all_are_the_mean(trust):
    p = np.array([0.3, -0.2, 1.5])
    found = shrunk(p, np.full(3, 1e3), np.array(trust))
    np.testing.assert_allclose(found, np.average(p, weights=trust), rtol=1e-3)


def test_one_that_is_believed():
    p, error = np.array([1.0, -1.0]), np.array([0.5, 0.5])
    np.testing.assert_allclose(shrunk(p, error, np.array([1.0, 0.0])), 1.0)
    found, mean = with_mean(p, error, np.ones(2))
    np.testing.assert_allclose([mean, found.sum()], 0.0, atol=1e-12)
    assert 0.5 < found[0] < 1.0


@pytest.mark.parametrize("tiny", [1e-3, 1e-6, 1e-9, 0.0])
def test_a_reward_without_error_does_not_make_others_certain(tiny):
    p, error = np.array([0.0, 0.2, -0.3]), np.array([tiny, 2.0, 2.0])
    np.testing.assert_allclose(shrunk(p, error, np.ones(3)), 0.0, atol=0.05)


def test_nothing_known():
    np.testing.assert_array_equal(shrunk(np.full(3, NAN), np.full(3, NAN), np.ones(3)), 0.0)
    np.testing.assert_array_equal(shrunk(np.arange(3.0), np.ones(3), np.zeros(3)), 0.0)
