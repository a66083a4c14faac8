"""Rewards in a process of their own: killed, crashed, swollen, and none of it matters."""

import os

import numpy as np
import psutil
import pytest
import torch

from marble.errors import MarbleError, RewardError
from marble.rewards import RewardSet, load
from marble.rewards.isolated import Isolated

N = 4
IMAGES = torch.arange(N, dtype=torch.uint8).view(N, 1, 1, 1).expand(N, 3, 4, 4).clone()
METADATA = [{"source": "general", "n": i} for i in range(N)]

REWARDS = """
import ctypes, os, sys, time
from marble.rewards import Reward, groupwise, pairwise

def level(images, prompts, metadata, scale=1.0):
    print("this goes to stderr")
    what = prompts[0]
    if what == "exit": sys.exit(0)
    if what == "os._exit": os._exit(0)
    if what == "_exit": ctypes.CDLL(None)._exit(0)
    if what == "crash": ctypes.string_at(0)
    if what == "hang": time.sleep(600)
    if what == "raise": raise ValueError("no ink")
    if what == "swell":
        kept = []
        while True:
            kept.append(bytearray(b"x") * 20_000_000)
            time.sleep(0.002)
    if what == "chdir": os.chdir("/")
    if what == "write": images.zero_()
    if what == "pid": return [float(os.getpid())] * len(images)
    return [scale * float(v) for v in images.float().mean((1, 2, 3))]

class Even(Reward):
    range = (0.0, 9.0)
    def applies(self, metadata):
        return metadata["n"] % 2 == 0
    def score(self, images, prompts, metadata):
        return images.double().mean((1, 2, 3))

@groupwise
def rank(images, prompts, metadata):
    return images.float().mean((1, 2, 3)).argsort().argsort().tolist()

@pairwise
def brighter(pairs, prompts, metadata):
    means = pairs.float().mean((2, 3, 4))
    return (means[:, 0] > means[:, 1]).float().tolist()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("isolated") / "mine.py"
    path.write_text(REWARDS)
    return path


@pytest.fixture(scope="module")
def rewards(file):
    """One worker for all tests: each leaves it, or its successor, in order."""
    one = RewardSet([load(f"{file}:level", isolate=True, scale=2.0)], on_error="skip_sample")
    yield one
    (pid,) = {int(v) for v in score(one, "pid")}
    one.close()
    assert not psutil.pid_exists(pid)


def score(rewards, what="a"):
    return rewards.score(IMAGES, [what] * N, METADATA)[0]


def test_the_same_scores_as_at_home_in_another_process(rewards, file):
    (proxy,) = rewards.rewards
    assert isinstance(proxy, Isolated) and proxy.name == "level"
    np.testing.assert_array_equal(score(rewards), [0, 2, 4, 6])
    (pid,) = {int(v) for v in score(rewards, "pid")}
    assert pid != os.getpid() and psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("exit", "SystemExit: 0"),
        ("raise", "ValueError: no ink"),
        ("os._exit", "os._exit(0)"),
        ("_exit", "its process ended (status 0)"),
        pytest.param("crash", "its process ended (status SIGSEGV)", marks=pytest.mark.slow),
    ],
)
def test_whatever_it_does_is_one_line_and_the_next_batch_is_scored(rewards, what, cause):
    assert np.isnan(score(rewards, what)).all()
    assert any(cause in text for text in rewards.warnings())
    strict = RewardSet(rewards.rewards)
    with pytest.raises(RewardError) as told:
        strict.score(IMAGES, [what] * N, METADATA)
    assert cause in str(told.value) and "\n" not in str(told.value)
    np.testing.assert_array_equal(score(rewards), [0, 2, 4, 6])


def test_a_deadline_ends_the_work(rewards):
    (pid,) = {int(v) for v in score(rewards, "pid")}
    rewards.deadline_s = 0.5
    assert np.isnan(score(rewards, "hang")).all()
    assert "no answer within 0.5 s" in rewards.warnings()[-1]
    assert not psutil.pid_exists(pid)
    rewards.deadline_s = 60  # loading again is not part of it, but this machine may be slow
    np.testing.assert_array_equal(score(rewards), [0, 2, 4, 6])
    rewards.deadline_s = None


@pytest.mark.slow
def test_its_memory_is_bounded(rewards):
    (proxy,) = rewards.rewards
    proxy.abort()
    before, proxy.memory = proxy.memory, 1_500_000_000
    assert np.isnan(score(rewards, "swell")).all()
    assert "needed more than 1.5 GB: killed" in rewards.warnings()[-1]
    proxy.memory = before
    proxy.abort()
    np.testing.assert_array_equal(score(rewards), [0, 2, 4, 6])


def test_what_it_changes_is_its_own(rewards, capfd):
    folder = os.getcwd()
    score(rewards, "chdir")
    score(rewards, "write")
    assert os.getcwd() == folder and int(IMAGES[3].max()) == 3
    assert rewards.warnings() == []
    assert "this goes to stderr" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "name", ["Even", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rank", "brighter"))]
)
def test_range_applicability_and_groups_are_those_of_the_reward(file, name):
    home, away = load(f"{file}:{name}"), load(f"{file}:{name}", isolate=True)
    sets = [RewardSet([home]), RewardSet([away])]
    assert away.name == home.name and away.range == home.range
    assert bool(sets[0].compares) == bool(sets[1].compares)
    groups = [5, 5, "b", "b"]
    here, there = (s.score(IMAGES, list("aabb"), METADATA, groups) for s in sets)
    np.testing.assert_array_equal(here, there)
    assert np.isfinite(here).any()
    sets[1].close()


def test_mistakes_are_told_when_it_starts(tmp_path):
    (tmp_path / "quits.py").write_text("import ctypes; ctypes.CDLL(None)._exit(0)")
    with pytest.raises(MarbleError, match=r"process ended \(status 0\)"):
        load(f"{tmp_path / 'quits.py'}:f", isolate=True)
    with pytest.raises(MarbleError, match="did you mean clipscore"):
        load("clipscor", isolate=True)
