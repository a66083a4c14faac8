"""Advantages against a loop over groups; what counts, what does not, what is refused."""

import numpy as np
import pytest
import torch

from marble.advantage import advantages, gather_rewards
from marble.errors import MarbleError, RewardError

NAN = float("nan")


def example(seed=0, k=3, n=24):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(k, n)) * rng.uniform(0.1, 20, size=(k, 1)) + 3
    rewards[rng.random((k, n)) < 0.2] = np.nan
    group = rng.permutation(np.repeat(np.arange(6) * 7 - 3, n // 6))
    return rewards, group


def by_loops(rewards, group, std):
    out = np.full_like(rewards, np.nan)
    for k, row in enumerate(rewards):
        valid = row[~np.isnan(row)]
        for g in set(group.tolist()):
            index = [i for i in range(len(row)) if group[i] == g and not np.isnan(row[i])]
            if index:
                values = row[index]
                sigma = values.std() if std == "group" else valid.std()
                out[k, index] = (values - values.mean()) / (sigma + 1e-4)
    return out


@pytest.mark.parametrize("std", ["batch", "group"])
def test_equals_a_loop_over_groups(std):
    rewards, group = example()
    result = advantages(rewards, group, std=std)
    np.testing.assert_allclose(result.adv_KN.numpy(), by_loops(rewards, group, std), atol=1e-12)
    assert torch.equal(result.valid_KN, ~torch.from_numpy(rewards).isnan())
    assert torch.equal(result.adv_KN.isnan(), ~result.valid_KN)


def test_counts():
    rewards = torch.zeros(2, 40)
    rewards[0, 0] = 1.0
    rewards[1] = NAN
    result = advantages(rewards, torch.zeros(40, dtype=torch.int64))
    assert result.counts_K.valid.tolist() == [40, 0]
    assert result.counts_K.informative.tolist() == [40, 0]
    assert result.adv_KN[0, 0] > 5 and result.counts_K.clipped.tolist() == [1, 0]
    assert result.adv_KN[1].isnan().all()


@pytest.mark.parametrize("std", ["batch", "group"])
def test_equal_groups_and_single_samples_are_uninformative(std):
    """0.1 three times has a mean that is not 0.1 in floating point; A is 0 all the same."""
    rewards = [[0.1, 0.1, 0.1, 5.0, 1.0, 2.0, NAN, 4.0]]
    group = [0, 0, 0, 1, 2, 2, 3, 3]
    result = advantages(np.array(rewards), group, std=std)
    assert result.adv_KN[0, [0, 1, 2, 3, 7]].tolist() == [0.0] * 5
    assert result.counts_K.informative.tolist() == [2]
    assert result.counts_K.valid.tolist() == [7]
    assert result.adv_KN[0, 4] < 0 < result.adv_KN[0, 5]


def test_groups_come_from_ids_whatever_their_order():
    rewards, group = example(1)
    order = np.random.default_rng(2).permutation(len(group))
    whole = advantages(rewards, group).adv_KN
    shuffled = advantages(rewards[:, order], group[order] * -5).adv_KN
    torch.testing.assert_close(shuffled, whole[:, order], equal_nan=True, rtol=1e-12, atol=1e-12)


def test_an_empty_step_is_empty():
    result = advantages(np.zeros((2, 0)), np.zeros(0, dtype=int))
    assert result.adv_KN.shape == (2, 0) and result.counts_K.valid.tolist() == [0, 0]


def test_infinite_rewards_are_named():
    rewards = np.zeros((2, 3))
    rewards[1, 2] = -np.inf
    with pytest.raises(RewardError, match=r"Reward 'ocr' is -inf for sample 2"):
        advantages(rewards, [0, 0, 0], names=["clip", "ocr"])
    with pytest.raises(RewardError, match="Reward number 1"):
        advantages(rewards, [0, 0, 0])


def test_wrong_input():
    good = np.zeros((2, 3))
    with pytest.raises(MarbleError, match="K rewards, N samples"):
        advantages(good[0], [0, 0, 0])
    with pytest.raises(MarbleError, match="one integer per sample"):
        advantages(good, [0, 0])
    with pytest.raises(MarbleError, match="one integer per sample"):
        advantages(good, [0.5, 0.5, 0.5])
    with pytest.raises(MarbleError, match="1 names for 2"):
        advantages(good, [0, 0, 0], names=["a"])
    with pytest.raises(MarbleError, match="unknown std"):
        advantages(good, [0, 0, 0], std="all")
    with pytest.raises(MarbleError, match="a_max"):
        advantages(good, [0, 0, 0], a_max=0.0)


def test_gather_without_processes_sorts_by_index():
    gathered = gather_rewards(np.array([[1.0, NAN, 3.0]]), [9, 8, 7], [2, 0, 1])
    assert gathered.index_N.tolist() == [0, 1, 2] and gathered.group_N.tolist() == [8, 7, 9]
    assert gathered.rewards_KN[0, 1:].tolist() == [3.0, 1.0]
    assert gathered.rewards_KN[0, 0].isnan()
    assert gathered.local_n.tolist() == [2, 0, 1]


def test_gather_refuses_repeats_and_wrong_shapes():
    with pytest.raises(MarbleError, match="index 4 occurs twice"):
        gather_rewards(np.zeros((1, 2)), [0, 0], [4, 4])
    with pytest.raises(MarbleError, match=r"\[K, n\], \[n\] and \[n\]"):
        gather_rewards(np.zeros((1, 2)), [0, 0], [4])
