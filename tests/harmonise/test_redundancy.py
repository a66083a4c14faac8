"""One vote between rewards that say the same."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.harmonise._redundancy import Redundancy

NAN = np.nan
SEEDS = st.integers(0, 2**32 - 1)
# Advantages that have nothing in common.
A, B, C = np.array([1.0, -1, 1, -1]), np.array([1.0, 1, -1, -1]), np.array([1.0, -1, -1, 1])
SILENT = np.zeros(4)


def votes(*steps, power=16.0, **options):
    follows = Redundancy(len(steps[0]), power, **options)
    for rows in steps:
        follows.observe(np.array(rows))
    return follows.votes_K


def drawn(seed, steps=1, k=5, n=30):
    """Advantages with something in common, gaps, and steps in which a reward is silent."""
    rng = np.random.default_rng(seed)
    common = rng.uniform(0, 1, (k, 1))
    out = []
    for _ in range(steps):
        rows = common * rng.standard_normal(n) + (1 - common) * rng.standard_normal((k, n))
        rows[rng.random((k, n)) < 0.2] = NAN
        rows[rng.random(k) < 0.2] = rng.choice([0.0, NAN])
        out.append(rows)
    return out


def by_loops(steps, power, decay=0.9):
    """Cosine by cosine: all steps weigh the same until there are 1/(1−decay) of them."""
    k = len(steps[0])
    out = []
    for i in range(k):
        total = 1.0
        for j in range(k):
            told = []
            for rows in steps:
                a, b = ([v if v == v else 0.0 for v in rows[r].tolist()] for r in (i, j))
                if any(a) and any(b):
                    inner = sum(x * y for x, y in zip(a, b))
                    told.append(inner / np.hypot.reduce(a) / np.hypot.reduce(b))
            mean = 0.0
            for t, value in enumerate(told):
                mean += max(1 - decay, 1 / (t + 1)) * (value - mean)
            total += 0.0 if i == j else max(0.0, mean) ** power
        out.append(1 / total)
    return out


@given(SEEDS, st.integers(1, 25), st.sampled_from([1.0, 2.0, 16.0]), st.sampled_from([0.5, 0.9]))
@settings(max_examples=40, deadline=None)
def test_against_loops(seed, steps, power, decay):
    rows = drawn(seed, steps)
    expected = by_loops(rows, power, decay)
    np.testing.assert_allclose(votes(*rows, power=power, decay=decay), expected, rtol=1e-9)


@given(SEEDS, st.integers(1, 5), st.floats(0.5, 16))
@settings(max_examples=40, deadline=None)
def test_properties(seed, steps, power):
    rows = drawn(seed, steps)
    found = votes(*rows, power=power)
    assert (found >= 1 / len(found) - 1e-12).all() and (found <= 1.0).all()
    rng = np.random.default_rng(seed)
    order, scale = rng.permutation(len(found)), 10 ** rng.uniform(-3, 3, (len(found), 1))
    np.testing.assert_allclose(votes(*(r[order] for r in rows), power=power), found[order])
    np.testing.assert_allclose(votes(*(r * scale for r in rows), power=power), found)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_copies_share_a_vote(n):
    copies = [scale * A for scale in range(1, n + 1)]
    np.testing.assert_allclose(votes([*copies, B]), [1 / n] * n + [1.0])


def test_independent_ones_and_opponents_keep_theirs():
    np.testing.assert_array_equal(votes([A, B, C]), 1.0)
    np.testing.assert_array_equal(votes([A, -A]), 1.0)
    np.testing.assert_array_equal(votes([A, -A + 0.1 * B, C]), 1.0)


def test_before_anything_is_known_everyone_has_one():
    np.testing.assert_array_equal(Redundancy(4, 16.0).votes_K, 1.0)


@pytest.mark.parametrize("power", [1.0, 2.0, 16.0])
def test_relatives_by_hand(power):
    np.testing.assert_allclose(votes([A, 0.8 * A + 0.6 * B], power=power), 1 / (1 + 0.8**power))


def test_where_a_reward_does_not_apply_it_says_nothing():
    half = np.array([1.0, -1.0, NAN, NAN])
    shared = 1 / (1 + np.sqrt(0.5) ** 2)  # half of A's pictures
    np.testing.assert_allclose(votes([half, A], power=2.0), shared)
    np.testing.assert_allclose(votes([half, 2 * half]), 0.5)
    np.testing.assert_array_equal(votes([half, half[::-1]]), 1.0)  # of different prompts


@pytest.mark.parametrize("silent", [SILENT, np.full(4, NAN)])
def test_a_silent_reward_leaves_its_cosines_as_they_were(silent):
    follows = Redundancy(3, 2.0)
    follows.observe(np.array([A, A + B, C]))
    before = follows.state_dict()
    follows.observe(np.array([silent, C, B]))
    after = follows.state_dict()
    assert after["cos"][0] == before["cos"][0]
    assert after["seen"][0] == before["seen"][0] == [1.0, 1.0, 1.0]
    assert after["seen"][1] == [1.0, 2.0, 2.0]
    # A reward that was silent until now is not believed to have been independent.
    np.testing.assert_allclose(votes([silent, A], [silent, A], [A, A], power=2.0), 0.5)


def test_agreement_is_forgotten_as_the_decay_says():
    follows = Redundancy(2, 1.0, decay=0.9)
    for _ in range(50):
        follows.observe(np.array([A, A]))
    np.testing.assert_allclose(follows.votes_K, 0.5)
    for step in range(1, 20):
        follows.observe(np.array([A, B]))
        np.testing.assert_allclose(follows.votes_K, 1 / (1 + 0.9**step))


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_state_survives_json(seed):
    rows = drawn(seed, 30)
    whole, resumed = Redundancy(5, 2.0), Redundancy(5, 2.0)
    for step in rows[:13]:
        whole.observe(step)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict(), allow_nan=False)))
    for step in rows[13:]:
        whole.observe(step)
        resumed.observe(step)
    np.testing.assert_array_equal(whole.votes_K, resumed.votes_K)
    assert whole.state_dict() == resumed.state_dict()
