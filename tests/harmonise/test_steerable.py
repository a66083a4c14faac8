"""The slider weights that an epoch's prompts are drawn under."""

import numpy as np
import pytest

from marble.errors import MarbleError
from marble.harmonise import Steerable, corner

K, GROUPS = 5, 2000


@pytest.fixture(scope="module")
def drawn():
    """Reward 0 applies to every third prompt, reward 1 to every other third, the rest to all."""
    applies = np.ones((K, GROUPS), dtype=bool)
    applies[0], applies[1] = np.arange(GROUPS) % 3 == 0, np.arange(GROUPS) % 3 == 1
    return Steerable(most=2.0).preferences(applies, 7, list(range(GROUPS))), applies


def test_weights_stay_in_range_and_in_sum(drawn):
    weights, _ = drawn
    assert weights.min() >= 0 and weights.max() <= 2 + 1e-12
    np.testing.assert_allclose(weights.sum(0), K)
    np.testing.assert_allclose(weights.mean(1), 1, atol=0.05)


def test_corners_and_the_centre_are_drawn(drawn):
    weights, applies = drawn
    centre = (weights == 1).all(0)
    assert 0.15 < centre.mean() < 0.25
    at = {k: (weights == corner(K, k, 2.0)[:, None]).all(0) for k in range(K)}
    shares = [at[k].mean() for k in range(K)]
    assert 0.35 < sum(shares) < 0.45
    assert max(shares) < 2.5 * min(shares)  # a rare reward is raised about as often as the others
    for k in range(K):
        assert not (at[k] & ~applies[k]).any()


def test_a_pure_function_of_seed_and_group(drawn):
    weights, applies = drawn
    again = Steerable(most=2.0).preferences(applies, 7, list(range(GROUPS)))
    assert np.array_equal(again, weights)
    other = Steerable(most=2.0).preferences(applies, 8, list(range(GROUPS)))
    assert (other != weights).any()


def test_a_prompt_that_no_reward_applies_to():
    weights = Steerable().preferences(np.zeros((3, 50), dtype=bool), 0, list(range(50)))
    np.testing.assert_allclose(weights.sum(0), 3)


def test_two_rewards_reach_from_nothing_to_all():
    np.testing.assert_allclose(corner(2, 1, 3.0), [0, 2])
    np.testing.assert_allclose(corner(5, 0, 2.0), [2, 0.75, 0.75, 0.75, 0.75])


def test_ranks_add_up_to_what_one_lora_has():
    assert Steerable().ranks(32, 5) == (22, 2)
    assert Steerable(rank=6).ranks(32, 5) == (2, 6)
    assert Steerable().ranks(6, 5) == (1, 1)
    with pytest.raises(MarbleError, match="need at least 6"):
        Steerable().ranks(5, 5)


def test_a_reward_counts_by_the_root_of_how_often_it_applies():
    """In this step alone: nothing is kept."""
    rule, nothing = Steerable(), np.zeros(3)
    advantages = np.array([[1.0, -1, np.nan, np.nan], [1, 0, -1, 0], [np.nan] * 3 + [0.0]])
    rule.observe(nothing, nothing, None, advantages)
    roots = np.sqrt([2, 4, 1])
    np.testing.assert_allclose(rule.current(np.ones(3)), roots / roots.sum())
    rule.observe(nothing, nothing, None, np.full((3, 4), np.nan))
    np.testing.assert_allclose(rule.current(np.ones(3)), 1 / 3)
    assert rule.state_dict() == {}
