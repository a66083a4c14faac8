"""Rewards that agree share a total weight of two; one that most others oppose gets none."""

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


def followed(*steps, power=16.0, **options):
    follows = Redundancy(len(steps[0]), power, **options)
    for rows in steps:
        follows.observe(np.array(rows))
    return follows


def weights(*steps, **options):
    return followed(*steps, **options).weight_K


def support(*steps, **options):
    return followed(*steps, **options).support_K


def drawn(seed, steps=1, k=5, n=30):
    """Advantages with something in common, gaps, and steps in which a reward is silent."""
    rng = np.random.default_rng(seed)
    common = rng.uniform(-1, 1, (k, 1)) if rng.random() < 0.5 else rng.uniform(0, 1, (k, 1))
    out = []
    for _ in range(steps):
        rows = common * rng.standard_normal(n) + (1 - abs(common)) * rng.standard_normal((k, n))
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
        against = 0.0
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
            against += 0.0 if i == j else max(0.0, -mean) ** power
        weight = 2 / total if total > 2 else 1.0
        excess = against / total - 1
        out.append((weight, 1.0 if excess < 0 else max(0.0, 1 - 2 * excess)))
    return np.array(out).T


@given(SEEDS, st.integers(1, 25), st.sampled_from([1.0, 2.0, 16.0]), st.sampled_from([0.5, 0.9]))
@settings(max_examples=40, deadline=None)
def test_against_loops(seed, steps, power, decay):
    rows = drawn(seed, steps)
    expected = by_loops(rows, power, decay)
    follows = followed(*rows, power=power, decay=decay)
    np.testing.assert_allclose(follows.weight_K, expected[0], rtol=1e-9)
    np.testing.assert_allclose(follows.support_K, expected[1], rtol=1e-9, atol=1e-9)


@given(SEEDS, st.integers(1, 5), st.floats(0.5, 16))
@settings(max_examples=40, deadline=None)
def test_properties(seed, steps, power):
    rows = drawn(seed, steps)
    rng = np.random.default_rng(seed)
    for kind, least in ((weights, 2 / len(rows[0])), (support, 0.0)):
        found = kind(*rows, power=power)
        assert (found >= least - 1e-12).all() and (found <= 1.0).all()
        order, scale = rng.permutation(len(found)), 10 ** rng.uniform(-3, 3, (len(found), 1))
        moved = kind(*(r[order] for r in rows), power=power)
        np.testing.assert_allclose(moved, found[order], atol=1e-9)
        np.testing.assert_allclose(kind(*(r * scale for r in rows), power=power), found, atol=1e-9)
    assert support(*rows, power=power).any()  # not all can be opposed


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_copies_share_two_votes(n):
    copies = [scale * A for scale in range(1, n + 1)]
    np.testing.assert_allclose(weights([*copies, B]), [min(1, 2 / n)] * n + [1.0])
    np.testing.assert_array_equal(support([*copies, B]), 1.0)


def test_independent_ones_and_opponents_keep_theirs():
    for rows in ([A, B, C], [A, -A], [A, -A + 0.1 * B, C]):
        np.testing.assert_array_equal(weights(rows), 1.0)
        np.testing.assert_array_equal(support(rows), 1.0)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_one_that_opposes_several_has_no_support(n):
    rows = [*(scale * A for scale in range(1, n + 1)), B, -A]
    np.testing.assert_allclose(support(rows), [1.0] * (n + 1) + [0.0], atol=1e-12)
    np.testing.assert_allclose(weights(rows)[-2:], 1.0)  # that is not a matter of its weight
    if n > 2:  # two against so many
        found = support([*rows, -2 * A])
        np.testing.assert_allclose(found, [1.0] * (n + 1) + [0.0] * 2, atol=1e-12)


def test_between_a_tie_and_opposed_by_hand():
    """Opposed by one wholly and by one with a cosine of 0.5: 1.25 against 1, at a power of 2."""
    other = 0.5 * A + np.sqrt(0.75) * B
    found = support([A, other, -A], power=2.0)
    np.testing.assert_allclose(found, [1.0, 1.0, 0.5])


def test_before_anything_is_known_everyone_has_one():
    np.testing.assert_array_equal(Redundancy(4, 16.0).weight_K, 1.0)
    np.testing.assert_array_equal(Redundancy(4, 16.0).support_K, 1.0)


@pytest.mark.parametrize("power", [1.0, 2.0, 16.0])
def test_relatives_by_hand(power):
    relative = 0.8 * A + 0.6 * B
    found = weights([A, A, relative], power=power)
    expected = [2 / (2 + 0.8**power)] * 2 + [min(1.0, 2 / (1 + 2 * 0.8**power))]
    np.testing.assert_allclose(found, expected)


def test_where_a_reward_does_not_apply_it_says_nothing():
    half = np.array([1.0, -1.0, NAN, NAN])
    shared = 2 / (1 + 3 * np.sqrt(0.5) ** 2)  # half of A's pictures
    np.testing.assert_allclose(weights([half, A, A, A], power=2.0)[0], shared)
    np.testing.assert_allclose(weights([half, 2 * half, 3 * half]), 2 / 3)
    np.testing.assert_array_equal(weights([half, half[::-1]] * 2), 1.0)  # of different prompts


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
    late = weights([silent, A, A], [silent, A, A], [A, A, A], power=2.0)
    np.testing.assert_allclose(late, 2 / 3)


def test_agreement_is_forgotten_as_the_decay_says():
    follows = Redundancy(4, 1.0, decay=0.9)
    for _ in range(50):
        follows.observe(np.array([A, A, A, A]))
    np.testing.assert_allclose(follows.weight_K, 0.5)
    for step in range(1, 20):
        follows.observe(np.array([A, A, A, B]))
        np.testing.assert_allclose(follows.weight_K[:3], 2 / (3 + 0.9**step))


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
    np.testing.assert_array_equal(whole.weight_K, resumed.weight_K)
    assert whole.state_dict() == resumed.state_dict()
