"""Rewards that compare the pictures of a prompt, against the same sums written out."""

import functools
import itertools

import numpy as np
import pytest
import torch
from _tiny_clip import new_tiny_clip
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.errors import MarbleError, RewardError
from marble.rewards import FunctionReward, Reward, RewardSet, check, groupwise, load, pairwise
from marble.rewards.base import scope_of

LEVELS = np.array([10, 40, 20, 90, 70, 30, 50])
IMAGES = torch.from_numpy(LEVELS.astype(np.uint8)).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).clone()
GROUPS = [3, 3, 8, 3, 8, 8, 5]  # the last is alone
PROMPTS = [f"prompt of {g}" for g in GROUPS]
METADATA = [{"source": "general"} for _ in GROUPS]


@groupwise
def above(images, prompts, metadata):
    """How far above the mean of what it is shown."""
    assert len(set(prompts)) == 1 and len(prompts) == len(metadata) == len(images) > 1
    means = images.float().mean((1, 2, 3))
    return means - means.mean()


@pairwise
def beats(pairs, prompts, metadata):
    """Half-way between a margin and a decision; prefers whatever comes first, by 0.25."""
    assert pairs.ndim == 5 and pairs.shape[1] == 2 and len(prompts) == len(metadata) == len(pairs)
    first, second = pairs.float().mean((2, 3, 4)).T
    return 0.25 + (first > second).float() + 0.001 * (first - second)


def level(images, prompts, metadata):
    return images.float().mean((1, 2, 3))


def by_hand(groups, mask, one):
    scores = np.full(len(groups), np.nan)
    for i, g in enumerate(groups):
        others = [j for j, h in enumerate(groups) if h == g and j != i and mask[j]]
        if mask[i] and others:
            scores[i] = one(i, others)
    return scores


def above_by_hand(i, others):
    return LEVELS[i] - np.mean([LEVELS[j] for j in (i, *others)])


def beats_by_hand(i, others):
    return np.mean(
        [0.25 + (LEVELS[i] > LEVELS[j]) + 0.001 * (LEVELS[i] - LEVELS[j]) for j in others]
    )


ALL = np.ones(7, dtype=bool)


def test_scores_are_those_of_the_groups_and_a_picture_alone_has_none():
    rewards = RewardSet([above, level, beats])
    assert rewards.compares == ["above", "beats"]
    scores = rewards.score(IMAGES, PROMPTS, METADATA, GROUPS)
    np.testing.assert_allclose(scores[0], by_hand(GROUPS, ALL, above_by_hand), atol=1e-5)
    np.testing.assert_allclose(scores[1], LEVELS)
    np.testing.assert_allclose(scores[2], by_hand(GROUPS, ALL, beats_by_hand), atol=1e-6)
    assert rewards.outcomes["above"].applicable == 6


def test_without_groups_pictures_of_one_prompt_belong_together():
    told, meant = (
        RewardSet([above, beats]).score(IMAGES, PROMPTS, METADATA, *g) for g in ([GROUPS], [])
    )
    np.testing.assert_array_equal(told, meant)
    with pytest.raises(MarbleError, match="6 groups"):
        RewardSet([above]).score(IMAGES, PROMPTS, METADATA, GROUPS[:-1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from("abc"), min_size=7, max_size=7),
    st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_masks(groups, mask):
    """Whoever does not apply is not shown, so is no part of anybody else's score either."""

    class Masked(FunctionReward):
        def applies(self, metadata):
            return metadata["on"]

    metadata = [{"source": "x", "on": on} for on in mask]
    rewards = RewardSet([Masked(above), Masked(beats)])
    scores = rewards.score(IMAGES, groups, metadata, groups)
    mask = np.array(mask)
    np.testing.assert_allclose(scores[0], by_hand(groups, mask, above_by_hand), atol=1e-5)
    np.testing.assert_allclose(scores[1], by_hand(groups, mask, beats_by_hand), atol=1e-6)


def test_the_order_of_pictures_does_not_matter():
    rewards = RewardSet([above, beats])
    straight = rewards.score(IMAGES, PROMPTS, METADATA, GROUPS)
    order = np.random.default_rng(0).permutation(7)
    mixed = rewards.score(
        IMAGES[order], [PROMPTS[i] for i in order], METADATA, [GROUPS[i] for i in order]
    )
    np.testing.assert_allclose(mixed, straight[:, order], atol=1e-5)


def test_a_preference_for_the_first_place_moves_no_advantage():
    def fair(pairs, prompts, metadata):
        return beats(pairs, prompts, metadata) - 0.25

    a, b = (
        RewardSet({"r": f}).score(IMAGES, PROMPTS, METADATA, GROUPS)[0]
        for f in (beats, pairwise(fair))
    )
    np.testing.assert_allclose(np.nanstd(a - b), 0, atol=1e-7)


def test_abstaining_from_some_pairs():
    @pairwise
    def shy(pairs, prompts, metadata):
        values = beats(pairs, prompts, metadata).tolist()
        return [
            None if p.float().mean(dim=(1, 2, 3))[1] == 20 else v for p, v in zip(pairs, values)
        ]

    scores = RewardSet([shy]).score(IMAGES, PROMPTS, METADATA, GROUPS)[0]
    expected = by_hand(GROUPS, ALL, lambda i, o: beats_by_hand(i, [j for j in o if j != 2]))
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_functions_keep_their_scope_through_options():
    assert scope_of(functools.partial(functools.partial(above), x=1)) == "group"
    assert FunctionReward(functools.partial(beats)).scope == "pair"

    class Odd(Reward):
        scope = "crowd"

    with pytest.raises(MarbleError, match="scope is 'crowd'"):
        scope_of(Odd())


def test_a_failing_group_is_found_and_the_others_are_kept():
    @groupwise
    def touchy(images, prompts, metadata):
        if "8" in prompts[0]:
            raise RuntimeError("not these")
        return above(images, prompts, metadata)

    with pytest.raises(RewardError, match=r"touchy failed on 'prompt of 8': .*RuntimeError"):
        RewardSet([touchy]).score(IMAGES, PROMPTS, METADATA, GROUPS)
    rewards = RewardSet([touchy], on_error="skip_sample")
    scores = rewards.score(IMAGES, PROMPTS, METADATA, GROUPS)[0]
    expected = by_hand(GROUPS, ALL & (np.array(GROUPS) != 8), above_by_hand)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert rewards.skipped == {"touchy": 3}


# -- diversity ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn():
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(7, 3, 24, 24, generator=generator) * 255).to(torch.uint8)


def test_diversity_by_an_encoder_is_the_mean_distance_to_the_others(drawn, tmp_path):
    reward = load("diversity", path=new_tiny_clip(tmp_path / "clip"))
    scores = RewardSet([reward]).score(drawn, PROMPTS, METADATA, GROUPS)[0]
    embedded = reward.encoder.embed_images(drawn).double().numpy()
    expected = by_hand(
        GROUPS, ALL, lambda i, o: np.mean([1 - embedded[i] @ embedded[j] for j in o])
    )
    np.testing.assert_allclose(scores, expected, atol=1e-9)
    assert np.isnan(scores[6]) and np.isfinite(scores[:6]).all()


def test_an_encoder_shared_with_another_reward_runs_once(drawn, tmp_path):
    folder = new_tiny_clip(tmp_path / "clip")
    pair = [load("clipscore", path=folder), load("diversity", path=folder)]
    calls = []
    embed = pair[0].encoder.embed_pixels
    pair[0].encoder.embed_pixels = lambda pixels: calls.append(len(pixels)) or embed(pixels)
    RewardSet(pair).score(drawn[:6], PROMPTS[:6], METADATA[:6], GROUPS[:6])
    assert pair[0].encoder is pair[1].encoder and calls == [6]


def test_diversity_by_pixels_needs_no_model(drawn):
    assert check("diversity", by="pixels") == "needs no weights"
    rewards = RewardSet([load("diversity", by="pixels")])
    flat = IMAGES.repeat(1, 1, 5, 5)
    scores = rewards.score(flat, PROMPTS, METADATA, GROUPS)[0]
    expected = by_hand(
        GROUPS, ALL, lambda i, o: np.mean([abs(LEVELS[i] - LEVELS[j]) / 255 for j in o])
    )
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_equal_pictures_have_none_and_one_that_differs_has_most(drawn):
    for reward in (load("diversity", by="pixels"), load("studio-diversity")):
        same = drawn[:1].repeat(4, 1, 1, 1)
        assert np.allclose(RewardSet([reward]).score(same, ["a"] * 4, METADATA[:4]), 0, atol=1e-6)
        other = torch.cat([same[:3], drawn[3:4].flip(1) // 3])
        scores = RewardSet([reward]).score(other, ["a"] * 4, METADATA[:4])[0]
        assert scores.argmax() == 3 and scores[0] > 1e-4


def test_the_studio_s_diversity_tells_kinds_of_pictures_apart():
    """Pictures of different prompts are further apart than renderings of one."""
    from marble.studio.world import compose, load_split, render

    rng = np.random.default_rng(0)
    prompts = load_split("geneval", "test")[:4]
    one = [render(compose(prompts[0], rng)) for _ in range(4)]
    many = [render(compose(p, rng)) for p in prompts]
    shown = torch.from_numpy(np.stack(one + many)).permute(0, 3, 1, 2)
    groups = [0] * 4 + [1] * 4
    scores = RewardSet([load("studio-diversity")]).score(shown, ["a"] * 8, METADATA[:1] * 8, groups)
    assert scores[0, 4:].mean() > 1.2 * scores[0, :4].mean() > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "eye"}, "by is 'eye'"),
        ({"by": "pixels", "path": "x"}, "no path"),
        ({"by": "pixels", "dtype": "bf16"}, "no dtype"),
    ],
)
def test_options_that_make_no_sense(options, said):
    with pytest.raises(MarbleError, match=said):
        load("diversity", **options)


def test_pairs_are_shown_in_bounded_numbers():
    seen = []

    @pairwise
    def count(pairs, prompts, metadata):
        seen.append(len(pairs))
        return [0.0] * len(pairs)

    images = torch.zeros(12, 3, 2, 2, dtype=torch.uint8)
    RewardSet([count]).score(images, ["a"] * 12, [{}] * 12)
    assert sum(seen) == len(list(itertools.permutations(range(12), 2))) and max(seen) <= 64
