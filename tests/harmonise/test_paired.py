"""Paired scores: what they tell of progress and trust, against statistics written differently."""

import json
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.harmonise._paired import Measured, PairedScores

NAN = np.nan
SEEDS = st.integers(0, 2**32 - 1)


def measured(now, base, window=8) -> Measured:
    pairs = PairedScores(window)
    pairs.add(np.array(now, dtype=float), np.array(base, dtype=float))
    return pairs.measured()


def drawn(seed, k=5, n=40, gaps=0.2):
    """Scores of pairs: alike more or less, moved more or less, some not applicable."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((k, n))
    alike, moved = rng.uniform(-1, 1, (2, k, 1))
    now = moved + alike * base + np.sqrt(1 - alike**2) * rng.standard_normal((k, n))
    later = np.arange(n) >= 5  # enough of them for any seed
    base[(rng.random((k, n)) < gaps) & later] = NAN
    now[(rng.random((k, n)) < gaps) & later] = NAN
    return now, base


def by_definition(now, base):
    """(p, its error, trust) of one reward, with Python's own statistics."""
    pairs = [(a, b) for a, b in zip(now.tolist(), base.tolist()) if a == a and b == b]
    after, before = zip(*pairs)
    unit = statistics.pstdev(before)
    gains = [(a - b) / unit for a, b in pairs]
    p, n = statistics.fmean(gains), len(gains)
    error = ((statistics.pvariance(gains) + 1 / n) / n) ** 0.5  # one more that has moved by σ
    alike = statistics.correlation(after, before)
    sure = (abs(p) / error - 2) / 2
    return p, error, sorted([0.0, max(2 * alike, sure), 1.0])[1]


# -- the measurement ------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 6), st.integers(12, 60))
@settings(max_examples=60, deadline=None)
def test_against_the_definition(seed, k, n):
    now, base = drawn(seed, k, n)
    found = np.stack(measured(now, base), 1)
    expected = [by_definition(*rows) for rows in zip(now, base)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert (found[:, 2] >= 0).all() and (found[:, 2] <= 1).all()


@given(SEEDS, st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
@settings(max_examples=60, deadline=None)
def test_a_reward_s_units_do_not_matter(seed, scale, offset):
    now, base = drawn(seed)
    plain, other = measured(now, base), measured(scale * now + offset, scale * base + offset)
    np.testing.assert_allclose(np.stack(other), np.stack(plain), rtol=1e-6, atol=1e-6)
    upside_down = measured(-now, -base)
    np.testing.assert_allclose(upside_down.p_K, -plain.p_K, rtol=1e-9)
    np.testing.assert_allclose(upside_down.trust_K, plain.trust_K, rtol=1e-9, atol=1e-12)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_neither_the_order_of_rewards_nor_that_of_pairs_matters(seed):
    now, base = drawn(seed)
    rng = np.random.default_rng(seed)
    rewards, pairs = rng.permutation(now.shape[0]), rng.permutation(now.shape[1])
    plain, other = measured(now, base), measured(now[rewards], base[rewards])
    np.testing.assert_array_equal(np.stack(other), np.stack(plain)[:, rewards])
    other = measured(now[:, pairs], base[:, pairs])
    np.testing.assert_allclose(np.stack(other), np.stack(plain), rtol=1e-9, atol=1e-12)


def test_what_cannot_be_measured_is_unknown_and_trusted():
    base = [[0.5] * 4, [NAN] * 4, [1, 2, NAN, NAN], [1, 2, 3, NAN]]
    now = [[1, 2, 3, 4], [NAN] * 4, [1, 2, NAN, NAN], [1, 2, 3, 4]]
    found = measured(now, base)
    assert np.isnan(found.p_K).tolist() == [True, True, True, False]  # three pairs are enough
    assert np.isnan(found.error_K).tolist() == [True, True, True, False]
    np.testing.assert_array_equal(found.trust_K, 1.0)


def test_a_pair_that_one_side_cannot_score_is_left_out():
    now, base = np.array([[1.0, 2.0, 4.0, 99.0, NAN]]), np.array([[0.0, 1.0, 2.0, NAN, 99.0]])
    found, short = measured(now, base), measured(now[:, :3], base[:, :3])
    np.testing.assert_array_equal(np.stack(found), np.stack(short))


# -- trust ----------------------------------------------------------------------------------------

# Vectors of mean 0 and spread 1 that have nothing in common.
ONE, OTHER = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1.0, 1.0, -1.0, -1.0])


@pytest.mark.parametrize(
    ("alike", "trust"), [(0.1, 0.2), (0.25, 0.5), (0.5, 1.0), (0.9, 1.0), (0.0, 0.0), (-0.9, 0.0)]
)
def test_trust_in_what_knows_a_pair_again(alike, trust):
    found = measured([alike * ONE + np.sqrt(1 - alike**2) * OTHER], [ONE])
    assert found.trust_K[0] == pytest.approx(trust, abs=1e-12)
    assert found.p_K[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("errors", "trust"), [(1, 0.0), (2, 0.0), (3, 0.5), (-3, 0.5), (4, 1.0), (9, 1.0), (-9, 1.0)]
)
def test_trust_in_what_has_surely_moved(errors, trust):
    """The gain OTHER − ONE + p of these pairs has a variance of 2: √((2 + 1/4) / 4) = 3/4."""
    found = measured([OTHER + errors * 0.75], [ONE])
    assert found.p_K[0] / found.error_K[0] == pytest.approx(errors)
    assert found.trust_K[0] == pytest.approx(trust, abs=1e-12)


def test_noise_is_not_trusted():
    noise = [np.random.default_rng(seed).standard_normal((2, 1, 288)) for seed in range(40)]
    trust = [measured(now, base).trust_K[0] for now, base in noise]
    assert np.mean(trust) < 0.1 and np.max(trust) < 0.7


def test_a_reward_that_has_left_its_floor_is_trusted_though_no_pair_is_known_again():
    rng = np.random.default_rng(0)
    base = np.zeros((1, 60))
    base[0, 0] = 0.1  # hardly ever more than nothing
    barely = base[:, ::-1] + 0.002 * rng.standard_normal((1, 60))
    assert measured(barely, base).trust_K[0] < 0.1
    left = rng.uniform(0, 1, (1, 60))
    assert abs(np.corrcoef(left[0], base[0])[0, 1]) < 0.25
    assert measured(left, base).trust_K[0] == 1.0


def test_pictures_that_are_their_own_pairs_have_not_moved():
    _, base = drawn(3, gaps=0.0)
    found = measured(base, base)
    np.testing.assert_array_equal(found.p_K, 0.0)
    np.testing.assert_allclose(found.trust_K, 1.0)


@pytest.mark.parametrize("n", [4, 12, 100])
def test_pairs_that_all_moved_alike_do_not_make_it_certain(n):
    """Scores in coarse steps often have not moved at all, which has no spread."""
    base = np.arange(n, dtype=float)
    found = measured([base, base + 5.0], [base, base])
    np.testing.assert_allclose(found.error_K, 1 / n)


# -- the window and its state ---------------------------------------------------------------------


def test_the_window_forgets_old_epochs():
    parts = [drawn(seed, n=10 + seed) for seed in range(5)]
    pairs = PairedScores(2)
    assert not pairs
    for part in parts:
        pairs.add(*part)
    last = measured(*(np.concatenate(side, 1) for side in zip(*parts[-2:])))
    np.testing.assert_array_equal(np.stack(pairs.measured()), np.stack(last))
    assert pairs


def test_scores_are_the_window_s_own():
    now, base = drawn(1)
    pairs = PairedScores(2)
    pairs.add(now, base)
    before = np.stack(pairs.measured())
    now[:], base[:] = 0.0, 1.0
    np.testing.assert_array_equal(np.stack(pairs.measured()), before)


@given(SEEDS, st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_state_survives_json(seed, epochs):
    whole, resumed = PairedScores(3), PairedScores(3)
    for epoch in range(epochs):
        whole.add(*drawn(seed + epoch))
    resumed.add(*drawn(seed + 99))  # forgotten by what is loaded
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict(), allow_nan=False)))
    assert resumed.state_dict() == whole.state_dict() and bool(resumed) == (epochs > 0)
    for pairs in (whole, resumed):
        pairs.add(*drawn(seed + 7))
    assert resumed.state_dict() == whole.state_dict()
    np.testing.assert_array_equal(np.stack(resumed.measured()), np.stack(whole.measured()))
