"""Training on the extremes of a group: which pictures, and what stays of all pictures."""

from itertools import product

import numpy as np
import pytest
import torch

from marble.balance.batch import make_batch
from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.training.extremes import extremes, sizes


def a_batch(rng, k=5, groups=4, each=6, masked=0.3):
    group_N = np.repeat(np.arange(groups), each)
    rewards = rng.normal(size=(k, groups * each))
    rewards[rng.random(rewards.shape) < masked] = np.nan
    rewards[:, 0] = np.nan  # a picture that nothing applies to
    names = [f"r{i}" for i in range(k)]
    batch = make_batch(rewards, group_N, names=names, weights_K=torch.ones(k, dtype=torch.float64))
    return batch, group_N.tolist()


@pytest.mark.parametrize(("share", "kept"), [(0.5, 3), (1 / 3, 2), (0.01, 1), (0.84, 6)])
def test_they_are_the_pictures_of_largest_advantage_of_each_group(share, kept):
    """By hand: for every pair of a group, whoever stays is at least as far from the mean."""
    rng = np.random.default_rng(0)
    batch, groups = a_batch(rng)
    active = np.array([True, True, False, True, True])
    size = sizes(batch, active, merged=False)
    chosen = extremes(size, groups, share)
    assert len(chosen) == 4 * kept and list(chosen) == sorted(chosen)
    adv = batch.adv.adv_KN.numpy()
    far = [
        abs(sum(adv[k, i] for k in np.flatnonzero(active) if not np.isnan(adv[k, i])))
        for i in range(batch.size)
    ]
    for i, j in product(range(batch.size), repeat=2):
        if groups[i] == groups[j] and i in chosen and j not in chosen:
            assert far[i] > far[j] - 1e-12


def test_a_method_that_trains_on_the_sum_goes_by_the_sum():
    batch, _ = a_batch(np.random.default_rng(1), masked=0.0)
    found = sizes(batch, np.ones(5, bool), merged=True)
    want = np.nan_to_num(batch.merged_N.abs().numpy())
    assert np.array_equal(found, want) and found.max() > 0


def test_a_preference_counts_and_pairs_stay_together():
    batch, groups = a_batch(np.random.default_rng(2))
    prefer = torch.zeros_like(batch.adv.adv_KN)
    prefer[3] = 2.0
    liked = make_batch(
        torch.where(batch.adv.valid_KN, batch.adv.adv_KN, torch.nan),
        groups,
        names=list("abcde"),
        weights_K=torch.ones(5, dtype=torch.float64),
        prefer_KN=prefer,
    )
    only = np.nan_to_num(liked.adv.adv_KN[3].abs().numpy()) * 2
    size = sizes(liked, np.ones(5, bool), merged=False)
    assert np.array_equal(size, only)
    chosen = extremes(size, groups, 0.5, together=2).reshape(-1, 2)
    assert np.array_equal(chosen[:, 1], chosen[:, 0] + 1) and (chosen[:, 0] % 2 == 0).all()
    assert len(chosen) == 4 * 2  # of three pairs


def test_equal_pictures_go_by_their_place_and_nothing_is_left_empty():
    assert extremes(np.zeros(6), [0, 0, 0, 1, 1, 1], 0.4).tolist() == [0, 1, 3, 4]
    assert extremes(np.zeros(2), [0, 1], 0.01).tolist() == [0, 1]


def test_a_step_trains_on_them_with_the_advantages_of_all(trainer):
    run = trainer("train.extremes=0.5", "train.probe=0", "objective.kl=0")
    epoch = run.draw(run._sampler().epoch(0))
    (chosen,) = run.split(epoch, 0, 0)
    assert len(chosen) == run.recipe.trained_per_epoch == 3 * 2
    adv = epoch.batch.adv.adv_KN.nan_to_num(0.0).sum(0).abs()
    for group in range(3):
        mine = [i for i, s in enumerate(epoch.samples) if s.group == epoch.samples[3 * group].group]
        assert set(mine) - set(chosen.tolist()) == {mine[int(adv[mine].argmin())]}
    seen = []
    run.balancer.harmoniser.observe = lambda *args: seen.append(args[3])
    run.gradient(epoch, chosen, 1, 0, on_policy=False)
    assert np.array_equal(seen[0], epoch.batch.adv.adv_KN.numpy(), equal_nan=True)
    found = {name: p.grad.clone() for name, p in run.parameters.items()}
    whole = trainer("train.probe=0", "objective.kl=0")
    assert [c.tolist() for c in whole.split(epoch, 0, 0)] == [list(range(9))]
    whole.balancer.load_state_dict(run.balancer.state_dict())
    whole.gradient(epoch, chosen, 1, 0, on_policy=False)
    assert all(torch.equal(p.grad, found[name]) for name, p in whole.parameters.items())
    whole.gradient(epoch, np.arange(9), 1, 0, on_policy=False)
    assert not all(torch.allclose(p.grad, found[n]) for n, p in whole.parameters.items())


def test_rows_count_all_pictures_and_share_the_rollout(trainer):
    run = trainer("train.extremes=0.5", "train.steps_per_epoch=2", "train.probe=0")
    rows = run.run_epoch()
    assert len(rows) == 2 and rows[0]["reward/red/applicable"] == 1.0
    whole = run.last[0].seconds + run.last[0].reward_seconds
    took = [row.get("time/train", row.get("time/refresh")) for row in rows]
    speeds = [9 * 0.5 / (0.5 * whole + seconds) for seconds in took]
    assert [row["images_per_s"] for row in rows] == pytest.approx(speeds)


def test_recipes_that_cannot_are_told(tmp_path):
    with pytest.raises(MarbleError, match="cannot share 24 samples"):
        load_recipe(
            "studio-fast",
            [
                *("train.extremes=0.25", "data.prompts_per_epoch=8", "data.images_per_prompt=12"),
                "train.steps_per_epoch=25",
            ],
        )
    with pytest.raises(MarbleError, match="extremes"):
        load_recipe("studio-fast", ["train.extremes=0"])
