"""Shrinkage: differences between rewards count as far as they are more than error."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from marble.harmonise._twins import shrunk

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


def by_loops(p, error, trust):
    known = [k for k in range(len(p)) if p[k] == p[k] and trust[k] > 0]
    if not known:
        return [0.0] * len(p)
    plain = np.average(p[known], weights=trust[known])
    beyond = [(p[k] - plain) ** 2 - error[k] ** 2 for k in known]
    tau2 = max(0.0, np.average(beyond, weights=trust[known]))
    weights = [trust[k] / (tau2 + error[k] ** 2) for k in known]
    mean = np.average(p[known], weights=weights)
    out = [mean] * len(p)
    for k in known:
        believed = trust[k] * tau2 / (tau2 + error[k] ** 2)
        out[k] = believed * p[k] + (1 - believed) * mean
    return out


def with_mean(p, error, trust):
    """Shrunk p and the mean, which is what an unknown reward counts as."""
    found = shrunk(np.append(p, NAN), np.append(error, NAN), np.append(trust, 1.0))
    return found[:-1], found[-1]


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_against_the_formula(seed):
    given_ = drawn(seed)
    np.testing.assert_allclose(shrunk(*given_), by_loops(*given_), rtol=1e-9, atol=1e-12)


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_between_p_and_the_mean(seed):
    p, error, trust = drawn(seed)
    found, mean = with_mean(p, error, trust)
    known = np.isfinite(p)
    low, high = np.minimum(p, mean), np.maximum(p, mean)
    assert (found[known] >= low[known] - 1e-12).all()
    assert (found[known] <= high[known] + 1e-12).all()
    np.testing.assert_array_equal(found[~known | (trust == 0)], mean)
    if (known & (trust > 0)).any():
        assert np.nanmin(p) - 1e-12 <= mean <= np.nanmax(p) + 1e-12


@given(SEEDS, st.floats(1e-3, 1e3), st.floats(-10, 10))
@settings(max_examples=60, deadline=None)
def test_units_and_order_do_not_matter(seed, scale, offset):
    p, error, trust = drawn(seed)
    assume((np.isfinite(p) & (trust > 0)).any())
    plain = shrunk(p, error, trust)
    other = shrunk(scale * p + offset, scale * error, trust)
    bound = 1e-9 * (scale + abs(offset))
    np.testing.assert_allclose(other, scale * plain + offset, rtol=1e-7, atol=100 * bound)
    order = np.random.default_rng(seed).permutation(len(p))
    moved = shrunk(p[order], error[order], trust[order])
    np.testing.assert_allclose(moved, plain[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("p", [[0.3, -0.2, 1.5], [0.5, 0.5, 0.5]])
def test_without_errors_p_stays(p):
    p = np.array(p)
    np.testing.assert_allclose(shrunk(p, np.zeros(3), np.ones(3)), p, rtol=1e-12)


@pytest.mark.parametrize("trust", [[1.0, 1.0, 1.0], [1.0, 0.5, 0.1]])
def test_with_huge_errors_all_are_the_mean(trust):
    p = np.array([0.3, -0.2, 1.5])
    found = shrunk(p, np.full(3, 1e3), np.array(trust))
    np.testing.assert_allclose(found, np.average(p, weights=trust), rtol=1e-9)


def test_by_hand():
    """τ² = 1 − 0.25 here, so three quarters of a difference are believed."""
    p, error = np.array([1.0, -1.0]), np.array([0.5, 0.5])
    np.testing.assert_allclose(shrunk(p, error, np.ones(2)), [0.75, -0.75])
    np.testing.assert_allclose(with_mean(p, error, np.ones(2))[1], 0.0, atol=1e-15)
    assert shrunk(p, error, np.array([1.0, 0.0])).tolist() == [1.0, 1.0]  # only one is believed


@pytest.mark.parametrize("tiny", [1e-3, 1e-6, 1e-9, 0.0])
def test_a_reward_without_error_does_not_make_others_certain(tiny):
    """Scores in steps may not move at all, which has no spread and so no error."""
    p, error = np.array([0.0, 0.2, -0.3]), np.array([tiny, 0.5, 0.5])
    np.testing.assert_allclose(shrunk(p, error, np.ones(3)), 0.0, atol=1e-5)


def test_what_has_no_error_stays_among_others_that_have():
    p, error = np.array([0.1, -0.3, 0.5, -0.5]), np.array([0.0, 0.0, 2.0, 2.0])
    np.testing.assert_allclose(shrunk(p, error, np.ones(4)), [0.1, -0.3, -0.1, -0.1])


def test_nothing_known():
    np.testing.assert_array_equal(shrunk(np.full(3, NAN), np.full(3, NAN), np.ones(3)), 0.0)
    np.testing.assert_array_equal(shrunk(np.arange(3.0), np.ones(3), np.zeros(3)), 0.0)
