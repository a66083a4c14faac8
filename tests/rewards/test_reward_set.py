"""Reward sets: NaN where inapplicable, errors that name the culprit, and never a made-up score."""

import json
import threading
import time

import numpy as np
import pytest
import torch

from marble.errors import MarbleError, RewardError
from marble.rewards import Reward, RewardSet
from marble.rewards.health import HealthWatch

N = 6
IMAGES = torch.arange(N, dtype=torch.uint8).view(N, 1, 1, 1).expand(N, 3, 8, 8).contiguous()
PROMPTS = [f"prompt {i}" for i in range(N)]
METADATA = [{"source": "ocr" if i % 2 else "general"} for i in range(N)]


def brightness(images, prompts, metadata):
    """The simple form: any callable."""
    return [float(v) for v in images.float().mean((1, 2, 3))]


class OnlyOCR(Reward):
    name = "only-ocr"
    range = (0.0, 10.0)

    def applies(self, metadata):
        return metadata["source"] == "ocr"

    def score(self, images, prompts, metadata):
        assert all(m["source"] == "ocr" for m in metadata)
        assert [m["prompt"] for m in metadata] == prompts
        return images.double().mean((1, 2, 3))


class Faulty(Reward):
    """Wrong in a chosen way on chosen pictures."""

    name = "faulty"

    def __init__(self, fault, on=(2,)):
        self.fault, self.on, self.calls = fault, on, 0

    def score(self, images, prompts, metadata):
        self.calls += 1
        values = images.double().mean((1, 2, 3)).numpy()
        hit = np.isin(values, self.on)
        if not hit.any():
            return values
        if self.fault == "raise":
            raise ConnectionError("the peer went away")
        if self.fault == "short":
            return values[:-1]
        if self.fault == "2d":
            return values[:, None]
        if self.fault == "hang":
            threading.Event().wait(20)
        values[hit] = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}[self.fault]
        return values


def test_scores_and_nan():
    scores = RewardSet([brightness, OnlyOCR()]).score(IMAGES, PROMPTS, METADATA)
    assert scores.dtype == np.float64
    nan = np.nan
    np.testing.assert_array_equal(scores, [[0, 1, 2, 3, 4, 5], [nan, 1, nan, 3, nan, 5]])


def test_nobody_applies_means_nobody_is_asked():
    faulty = Faulty("raise")
    faulty.sources = frozenset({"elsewhere"})
    scores = RewardSet([faulty]).score(IMAGES, PROMPTS, METADATA)
    assert np.isnan(scores).all() and faulty.calls == 0


def test_none_and_nan_of_a_simple_callable_mean_not_applicable():
    def picky(images, prompts, metadata):
        return [None, 1.0, float("nan"), 2, 3, 4]

    rewards = RewardSet([picky])
    scores = rewards.score(IMAGES, PROMPTS, METADATA)
    np.testing.assert_array_equal(scores, [[np.nan, 1, np.nan, 2, 3, 4]])
    assert rewards.skipped == {"picky": 0}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", "the peer went away"),
        ("short", r"returned shape \(5,\) for 6 pictures"),
        ("2d", r"returned shape \(6, 1\)"),
        ("nan", "returned nan"),
        ("inf", "returned inf"),
        ("-inf", "returned -inf"),
    ],
)
def test_stop_names_reward_prompt_and_cause(fault, cause):
    with pytest.raises(RewardError, match=cause) as raised:
        RewardSet([brightness, Faulty(fault)]).score(IMAGES, PROMPTS, METADATA)
    assert "faulty" in str(raised.value)
    if fault not in ("short", "2d"):  # these spoil the whole batch, not one sample
        assert "'prompt 2'" in str(raised.value)


@pytest.mark.parametrize("given", [7, ["high"] * N, [[1.0]] * N])
def test_what_is_no_score_is_shown_with_what_is_wanted(given):
    def odd(images, prompts, metadata):
        return given if isinstance(given, int) else given[: len(prompts)]

    with pytest.raises(RewardError, match=r"returned .*; return one number per picture, or None"):
        RewardSet([odd]).score(IMAGES, PROMPTS, METADATA)


@pytest.mark.parametrize(("fault", "lost"), [("raise", 1), ("nan", 1), ("inf", 1), ("short", N)])
def test_skip_loses_the_sample_and_counts_it(fault, lost):
    rewards = RewardSet([brightness, Faulty(fault)], on_error="skip_sample")
    scores = rewards.score(IMAGES, PROMPTS, METADATA)
    np.testing.assert_array_equal(scores[0], np.arange(N))
    expected = np.arange(N, dtype=float)
    expected[2 if lost == 1 else slice(None)] = np.nan
    np.testing.assert_array_equal(scores[1], expected)
    assert rewards.skipped == {"brightness": 0, "faulty": lost}
    assert rewards.outcomes["faulty"].skipped == lost and rewards.outcomes["faulty"].cause
    warnings = rewards.warnings()
    assert any(f"skipped {lost} of {N}" in text for text in warnings)
    assert rewards.warnings() == []
    rewards.score(IMAGES, PROMPTS, METADATA)
    assert rewards.skipped["faulty"] == 2 * lost


def test_a_dead_reward_is_not_asked_for_every_sample():
    dead = Faulty("raise", on=tuple(range(N)))
    rewards = RewardSet([dead], on_error="skip_sample")
    assert np.isnan(rewards.score(IMAGES, PROMPTS, METADATA)).all()
    assert dead.calls == 4  # the batch, then three samples
    assert rewards.skipped["faulty"] == N


def test_an_error_only_batches_have_says_so():
    class TooMany(Reward):
        name = "too-many"

        def score(self, images, prompts, metadata):
            if len(images) > 2:
                raise MemoryError("no room")
            return [1.0] * len(images)

    with pytest.raises(RewardError, match=r"no room .on 6 pictures at once"):
        RewardSet([TooMany()]).score(IMAGES, PROMPTS, METADATA)
    scores = RewardSet([TooMany()], on_error="skip_sample").score(IMAGES, PROMPTS, METADATA)
    np.testing.assert_array_equal(scores, np.ones((1, N)))


@pytest.mark.parametrize("on_error", ["stop", "skip_sample"])
def test_deadline(on_error):
    rewards = RewardSet([Faulty("hang"), brightness], on_error=on_error, deadline_s=0.2)
    began = time.monotonic()
    if on_error == "stop":
        with pytest.raises(RewardError, match=r"faulty.*no answer within 0.2 s"):
            rewards.score(IMAGES, PROMPTS, METADATA)
    else:
        scores = rewards.score(IMAGES, PROMPTS, METADATA)
        assert np.isnan(scores[0]).all()
        np.testing.assert_array_equal(scores[1], np.arange(N))
        assert rewards.skipped["faulty"] == N
    assert time.monotonic() - began < 5


def test_a_quick_reward_meets_its_deadline_and_keeps_its_errors():
    scores = RewardSet([brightness], deadline_s=5).score(IMAGES, PROMPTS, METADATA)
    np.testing.assert_array_equal(scores, [np.arange(N)])
    with pytest.raises(RewardError, match="ConnectionError: the peer went away"):
        RewardSet([Faulty("raise")], deadline_s=5).score(IMAGES, PROMPTS, METADATA)


@pytest.mark.parametrize("gpus", [True, False])
def test_a_reward_s_thread_is_on_the_caller_s_gpu(monkeypatch, gpus):
    """Where CUDA is in use already: asking would start it elsewhere."""
    told = []

    def current():
        assert gpus and threading.current_thread() is threading.main_thread()
        return 3

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "current_device", current)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda at: told.append((at, threading.current_thread()))
    )
    rewards = RewardSet([brightness], deadline_s=20)
    assert rewards.score(IMAGES, PROMPTS, METADATA).shape[0] == 1
    assert [at for at, _ in told] == ([3] if gpus else [])
    assert all(thread is not threading.main_thread() for _, thread in told)


def test_no_score_is_ever_invented():
    """Whatever goes wrong, every finite number in the result is one the reward gave."""
    for fault in ("raise", "short", "2d", "nan", "inf", "-inf"):
        for on in ((0,), (2, 5), tuple(range(N))):
            rewards = RewardSet([Faulty(fault, on)], on_error="skip_sample")
            scores = rewards.score(IMAGES, PROMPTS, METADATA)[0]
            given = np.isfinite(scores)
            np.testing.assert_array_equal(scores[given], np.arange(N)[given])
            assert not np.isin(on, np.flatnonzero(given)).any()


def test_bad_batches_are_refused():
    rewards = RewardSet([brightness])
    with pytest.raises(MarbleError, match="uint8"):
        rewards.score(IMAGES.float(), PROMPTS, METADATA)
    with pytest.raises(MarbleError, match="one of each"):
        rewards.score(IMAGES, PROMPTS[:-1], METADATA)
    with pytest.raises(MarbleError, match="same name"):
        RewardSet([brightness, brightness])
    with pytest.raises(MarbleError, match="on_error"):
        RewardSet([brightness], on_error="ignore")


def test_rewards_of_the_same_pictures_get_the_same_tensor():
    seen = []

    class Looks(Reward):
        def __init__(self, name):
            self.name = name

        applies = OnlyOCR.applies

        def score(self, images, prompts, metadata):
            seen.append(images)
            return [0.0] * len(images)

    RewardSet([Looks("a"), Looks("b")]).score(IMAGES, PROMPTS, METADATA)
    assert seen[0] is seen[1]


def test_names_by_mapping():
    rewards = RewardSet({"light": brightness, "again": OnlyOCR()})
    assert rewards.names == ["light", "again"] and len(rewards) == 2


# The health watch


def feed(watch, rng, n, low=0.0, high=1.0):
    found = []
    for _ in range(n):
        found += watch.feed(rng.uniform(low, high, 32))
    return found


def test_a_healthy_reward_is_left_alone():
    watch = HealthWatch("r", (0, 1))
    rng = np.random.default_rng(0)
    assert feed(watch, rng, 200) == []
    slowly = [watch.feed(rng.uniform(0, 1, 32) * (1 - i / 400) + i / 400) for i in range(200)]
    assert not any(slowly)  # training that works is no fault


def test_constant_values_are_reported_once():
    watch = HealthWatch("r", (0, 1))
    found = [watch.feed(np.zeros(32)) for _ in range(6)]
    assert [len(f) for f in found] == [0, 1, 0, 0, 0, 0]
    assert "all 0" in found[1][0]


def test_values_out_of_range_are_reported():
    watch = HealthWatch("r", (0, 1))
    (text,) = watch.feed(np.array([0.2, 1.7, 0.4]))
    assert "outside [0, 1]" in text and "1.7" in text
    assert watch.feed(np.array([0.0, 1.0, 0.5])) == []


def test_a_sudden_shift_is_reported():
    watch = HealthWatch("r", (0, 10))
    rng = np.random.default_rng(1)
    assert feed(watch, rng, 30) == []
    found = watch.feed(rng.uniform(3, 4, 32))
    assert len(found) == 1 and "jumped" in found[0]


def test_watch_state_survives_a_round_trip():
    rng = np.random.default_rng(2)
    a, b = HealthWatch("r", (0, 1)), HealthWatch("r", (0, 1))
    feed(a, rng, 25)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    later = [rng.uniform(0, 1, 8), np.full(64, 0.5), np.full(32, 0.5), np.full(32, 5.0)]
    assert [a.feed(x) for x in later] == [b.feed(x) for x in later]
    rewards = RewardSet([OnlyOCR()])
    rewards.score(IMAGES, PROMPTS, METADATA)
    again = RewardSet([OnlyOCR()])
    again.load_state_dict(json.loads(json.dumps(rewards.state_dict())))
    assert again.state_dict() == rewards.state_dict()


def test_a_set_passes_on_what_its_watch_finds():
    rewards = RewardSet({"light": OnlyOCR()})
    rewards.rewards[0].range = (0.0, 2.0)
    rewards = RewardSet(rewards.rewards)
    rewards.score(IMAGES, PROMPTS, METADATA)
    assert any("outside [0, 2]" in text for text in rewards.warnings())
