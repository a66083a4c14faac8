"""Rewards that compare a prompt's pictures, in a run: groups stay whole where they are scored."""

import json

import numpy as np
import pytest
import torch
from _survive import make_world, rows, run_here, run_processes
from hypothesis import given
from hypothesis import strategies as st

from marble.data import Prompt, Sample
from marble.rewards import RewardSet, groupwise
from marble.training.dealing import batches, shares
from marble.training.paired import choose
from marble.training.rollout import make_rollout

REWARDS = """
import torch
from marble.rewards import groupwise, pairwise


@groupwise
def spread(images, prompts, metadata):
    assert len(set(prompts)) == 1
    means = images.double().mean((1, 2, 3)) / 255
    return ((means - means.mean()).abs() + len(images)).tolist()  # the size of the group shows


@pairwise
def brighter(pairs, prompts, metadata):
    means = pairs.double().mean((2, 3, 4))
    value = (means[:, 0] > means[:, 1]).double() + (means[:, 0] - means[:, 1]) / 255
    return [v if m["source"] == "ocr" else None for v, m in zip(value.tolist(), metadata)]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    recipe = make_world(tmp_path_factory.mktemp("groups"))
    (recipe.parent / "groups.py").write_text(REWARDS)
    return recipe


def settings(world, *more):
    here = world.parent
    entries = [f"{{name: red, reward: '{here}/toys.py:red'}}"]
    entries += [f"{{name: {n}, reward: '{here}/groups.py:{n}'}}" for n in ("spread", "brighter")]
    return [
        f"rewards.train=[{', '.join(entries)}]",
        f"rewards.heldout=[{{name: far, reward: '{here}/groups.py:spread'}}]",
        "train.steps=2",
        "eval.images_per_prompt=2",
        "eval.every=0",
        *more,
    ]


def scores(run):
    return [
        np.array(json.loads(path.read_text())["score"], dtype=float)
        for path in sorted((run / "advantages").glob("*.json"))
    ]


# -- dealing --------------------------------------------------------------------------------------


def samples(groups):
    return [Sample(Prompt(f"{g}", "a", {}), g, 7 * i, i) for i, g in enumerate(groups)]


sizes = st.lists(st.integers(1, 5), max_size=8)


@given(sizes, st.integers(1, 5), st.booleans(), st.booleans())
def test_everyone_is_dealt_and_groups_stay_whole(sizes, count, whole, even):
    drawn = samples([g for g, n in enumerate(sizes) for _ in range(n)])
    dealt = shares(drawn, count, whole_groups=whole, even=even)
    assert len(dealt) == count
    flat = [i for share in dealt for i in share]
    assert set(flat) == set(range(len(drawn)))
    if not even:
        assert len(flat) == len(drawn)
    if whole:
        for share in dealt:
            for g in {drawn[i].group for i in share}:
                assert sum(drawn[i].group == g for i in share) == sizes[g]  # and nothing twice
        units = [len({drawn[i].group for i in share}) for share in dealt]
    else:
        units = [len(share) for share in dealt]
    assert max(units) - min(units) <= (0 if even and drawn else 1)


def test_without_comparing_rewards_nothing_is_dealt_differently_than_before():
    drawn = samples([0] * 4 + [1] * 4 + [2] * 4)
    dealt = shares(drawn, 5, whole_groups=False)
    assert dealt == [list(range(r, 12, 5)) for r in range(5)]


@given(sizes, st.integers(1, 12), st.booleans())
def test_batches_cover_everything_in_order(sizes, size, whole):
    drawn = samples([g for g, n in enumerate(sizes) for _ in range(n)])
    cut = batches(drawn, size, whole_groups=whole)
    assert [i for part in cut for i in range(part.start, part.stop)] == list(range(len(drawn)))
    for part in cut[:-1]:
        length = part.stop - part.start
        assert length >= size
        if whole:
            assert drawn[part.stop].group != drawn[part.stop - 1].group
            assert length < size + max(sizes)
        else:
            assert length == size


@given(st.integers(1, 9), st.integers(2, 6), st.integers(1, 40))
def test_pairs_of_comparing_rewards_come_in_company(groups, each, count):
    drawn = samples([g for g in range(groups) for _ in range(each)])
    at = choose(drawn, count, compared=True)
    taken = {g: sum(drawn[i].group == g for i in at) for g in {drawn[i].group for i in at}}
    assert len(set(taken.values())) == 1 and min(taken.values()) >= 2
    assert len(at) <= max(2, count)
    assert len(taken) == max(1, min(groups, count // 2))


# -- a rollout ------------------------------------------------------------------------------------


class Drawing:
    """Draws a picture of one level for each sample."""

    def encode(self, prompts):
        return prompts

    prepare = encode

    def drawing(self, policy, steered, low):
        return torch.no_grad()

    def preferring(self, weights):
        return torch.no_grad()

    def sample(self, cond, seeds, **_):
        return torch.tensor(seeds, dtype=torch.float32).view(-1, 1, 1, 1)

    def decode(self, latents):
        return latents.to(torch.uint8).expand(-1, 3, 4, 4).contiguous()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 100])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_group_is_scored_in_one_piece_whatever_the_batch(size, pooled):
    from concurrent.futures import ThreadPoolExecutor

    shown = []

    @groupwise
    def whole(images, prompts, metadata):
        shown.append(len(images))
        return (images.float().mean((1, 2, 3)) - images.float().mean()).tolist()

    drawn = samples([0] * 4 + [1] * 4 + [2] * 4)
    with ThreadPoolExecutor(1) as pool:
        made = make_rollout(
            Drawing(),
            RewardSet([whole]),
            drawn,
            policy="old",
            steps=1,
            sampler="euler",
            guidance=1,
            batch_size=size,
            pool=pool if pooled else None,
        )
    assert shown == [4, 4, 4]
    levels = np.array([7.0 * i for i in range(12)]).reshape(3, 4)
    np.testing.assert_allclose(
        made.scores_Kn[0], (levels - levels.mean(1, keepdims=True)).ravel(), atol=1e-4
    )
    assert made.images[:, 0, 0, 0].tolist() == [7 * i for i in range(12)]


# -- a run ----------------------------------------------------------------------------------------


def test_one_process_and_two_score_the_same_groups(world, tmp_path):
    """In training, in evaluation, and for pairs (method progress)."""
    words = settings(world, "balance.method=progress", "balance.progress.paired=6")
    outcome, said = run_here(world, tmp_path / "one", *words, "rollout.batch_size=5")
    assert outcome.finished, said
    assert run_processes(2, world, tmp_path / "two", *words, "rollout.batch_size=3") == [0, 0]
    one, two = scores(tmp_path / "one"), scores(tmp_path / "two")
    assert len(one) == 2
    for a, b in zip(one, two):
        assert (a[1] >= 4).all() and (a[1] < 5).all()  # groups of four, all of them
        np.testing.assert_allclose(a, b, atol=1e-5)
    for a, b in zip(rows(tmp_path / "one"), rows(tmp_path / "two")):
        for key in a:
            if key.startswith(("progress/", "progress_trust/", "reward/")):
                assert a[key] == pytest.approx(b[key], abs=2e-3), key
    assert "progress/spread" in rows(tmp_path / "one")[1]
    records = [rows(tmp_path / name, "evals.jsonl") for name in ("one", "two")]
    for a, b in zip(*records):
        assert a["rewards"]["spread"]["mean"] == pytest.approx(b["rewards"]["spread"]["mean"], 1e-4)
        assert 2 <= a["heldout"]["far"]["mean"] < 3  # groups of two
        assert a["heldout"]["far"]["mean"] == pytest.approx(b["heldout"]["far"]["mean"], 1e-4)


def test_an_evaluation_with_nothing_to_compare_says_so(world, tmp_path):
    words = settings(world, "train.steps=1", "eval.images_per_prompt=1")
    outcome, said = run_here(world, tmp_path / "run", *words)
    assert outcome.finished
    assert "reward spread gave no score for any of 2 pictures" in said
    assert "set eval.images_per_prompt to 2 or more" in said
    assert "reward far gave no score" in said and "reward red gave no" not in said
