"""Rewards that cancel out: which they are, and what the default makes of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marble.harmonise import Harmoniser, opposed_pairs


def gram(seed: int, k: int, cosine: float) -> np.ndarray:
    """Gram matrix of k gradients, of which the first two have this cosine."""
    g = np.random.default_rng(seed).standard_normal((k, 40))
    one = g[0] / np.linalg.norm(g[0])
    other = g[1] - (g[1] @ one) * one
    sine = np.sqrt(1 - cosine**2)
    g[1] = 3.0 * (cosine * one + sine * other / np.linalg.norm(other))
    return g @ g.T


def named(k: int) -> list[str]:
    return [f"r{i}" for i in range(k)]


@given(st.integers(0, 10**6), st.integers(3, 8), st.floats(-1.0, -0.992))
def test_the_default_solves_for_the_others_as_if_the_pair_were_not_there(seed, k, cosine):
    matrix = gram(seed, k, cosine)
    found = Harmoniser("marble", named(k), rho=0.0).solve(matrix)
    alone = Harmoniser("marble", named(k)[2:], rho=0.0).solve(matrix[2:, 2:])
    assert found.alpha_raw_K[2:] == pytest.approx(alone.alpha_raw_K, abs=1e-9)
    assert found.alpha_raw_K[:2].tolist() == [0, 0]
    assert found.alpha_K[:2] == pytest.approx([1 / k, 1 / k])  # as they were: they cancel
    assert "r0 and r1 cancel out: left out." in found.notes


@given(st.integers(0, 10**6), st.integers(3, 8))
def test_the_published_rule_trains_on_nothing_but_the_pair(seed, k):
    """Which is why the default differs."""
    found = Harmoniser("marble-paper", named(k)).solve(gram(seed, k, -1.0))
    assert found.alpha_raw_K[:2].sum() == pytest.approx(1.0, abs=1e-6)


@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(-0.988, 0.9))
def test_rewards_that_leave_each_other_room_stay_in_the_solve(seed, k, cosine):
    matrix = gram(seed, k, cosine)
    found = Harmoniser("marble", named(k)).solve(matrix)
    assert found.notes == () and bool(opposed_pairs(found.cos_KK)) == (found.cos_KK.min() < -0.9)
    paper = Harmoniser("marble-paper", named(k)).solve(matrix)
    assert found.alpha_raw_K.tolist() == paper.alpha_raw_K.tolist()


@pytest.mark.parametrize("k", [2, 4])
def test_where_nobody_would_be_left_all_stay(k):
    g = np.random.default_rng(k).standard_normal((k // 2, 9))
    matrix = np.vstack([g, -g]) @ np.vstack([g, -g]).T
    found = Harmoniser("marble", named(k)).solve(matrix)
    assert len(opposed_pairs(found.cos_KK)) == k // 2
    assert found.alpha_raw_K.sum() == pytest.approx(1.0) and found.notes == ()


def test_groups_of_the_user_s_are_left_as_they_are():
    matrix = gram(3, 4, -0.995)
    groups = {"pair": ["r0", "r1"]}
    found = Harmoniser("marble", named(4), groups=groups).solve(matrix)
    assert found.alpha_raw_K[:2].min() > 0 and found.notes == ()


def test_a_reward_is_in_one_pair_and_the_most_opposed_come_first():
    cos = np.eye(5)
    for i, j, value in ((0, 1, -0.95), (0, 2, -0.99), (3, 4, -0.93), (1, 3, np.nan)):
        cos[i, j] = cos[j, i] = value
    assert opposed_pairs(cos) == [(0, 2), (3, 4)]
    assert opposed_pairs(np.ones((1, 1))) == opposed_pairs(np.full((3, 3), np.nan)) == []
