"""Rewards that compare, over HTTP; several servers; and servers whose rewards have processes."""

import json
import threading
import time

import httpx
import numpy as np
import psutil
import pytest
import torch
from _peers import Peer, running
from test_serve_client import good, hang_up, impatient  # noqa: F401 (a fixture)
from test_serve_server import Brightness, ask, item

from marble.errors import MarbleError, RewardError
from marble.rewards import FunctionReward, RewardSet, check, groupwise, load, pairwise

LEVELS = [10, 40, 20, 90, 70, 30, 50, 60]
IMAGES = torch.tensor(LEVELS, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).clone()
GROUPS = [3, 3, 8, 3, 8, 8, 5, 5]
PROMPTS = [f"prompt of {g}" for g in GROUPS]
METADATA = [{"source": "general"}] * 8


@groupwise
def above(images, prompts, metadata):
    means = images.double().mean((1, 2, 3))
    return (means - means.mean()).tolist()


@pairwise
def beats(pairs, prompts, metadata):
    means = pairs.double().mean((2, 3, 4))
    return (means[:, 0] > means[:, 1]).double().tolist()


@pytest.mark.parametrize("function", [above, beats])
@pytest.mark.parametrize("size", [1, 3, 32])
def test_groups_travel_together(function, size):
    here = RewardSet([function]).score(IMAGES, PROMPTS, METADATA, GROUPS)
    with running([FunctionReward(function)], batch_size=2) as url:
        away = load(
            "remote", url=url, reward=function.__name__, scope="group", batch_size=size, name="r"
        )
        np.testing.assert_array_equal(
            RewardSet([away]).score(IMAGES, PROMPTS, METADATA, GROUPS), here
        )
        # A server's limit on items cuts between groups, and never inside one.
    with running([FunctionReward(function)], max_items=3) as url:
        away = load("remote", url=url, reward=function.__name__, scope="group", name="r")
        np.testing.assert_array_equal(
            RewardSet([away]).score(IMAGES, PROMPTS, METADATA, GROUPS), here
        )
    with running([FunctionReward(function)], max_items=2) as url:
        away = load("remote", url=url, reward=function.__name__, scope="group", name="r")
        with pytest.raises(RewardError, match="413"):
            RewardSet([away]).score(IMAGES, PROMPTS, METADATA, GROUPS)


def test_groups_of_different_clients_are_not_mixed():
    with running([FunctionReward(above)], gather_s=0.3) as url:
        answers = []

        def one(level):
            items = [item(v) | {"group": 0} for v in (level, level + 10)]
            answers.append(ask(url, items, name="above").json()["scores"])

        threads = [threading.Thread(target=one, args=(v,)) for v in (0, 50, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [[-5.0, 5.0]] * 3


def test_a_comparing_reward_asked_without_groups_refuses():
    with running([FunctionReward(above), Brightness()]) as url:
        told = ask(url, [item(), item()], name="above")
        assert told.status_code == 422 and "scope to group" in told.json()["error"]
        mixed = [item() | {"group": 1}, item(size=(4, 4)) | {"group": 1}]
        assert "one size" in ask(url, mixed, name="above").json()["error"]
        assert ask(url, [item()]).status_code == 200
        assert httpx.get(f"{url}/health", trust_env=False).json()["compare"] == ["above"]
        with pytest.raises(MarbleError, match="add `scope: group`"):
            check("remote", url=url, reward="above")
        assert "above served at" in check("remote", url=url, reward="above", scope="group")
        with pytest.raises(MarbleError, match="use picture or group"):
            load("remote", url=url, reward="above", scope="pair")


# -- several servers ------------------------------------------------------------------------------


def levels(handler, request):
    from marble.rewards.pictures import from_png

    time.sleep(0.02)
    return 200, {"scores": [float(from_png(i["image"]).float().mean()) for i in request["items"]]}


def remote(*urls, **options):
    options = {"retries": 3, "batch_size": 2, "name": "bright", **options}
    return load("remote", url=list(urls), reward="bright", **options)


def score(reward, **options):
    rewards = RewardSet([reward], **options)
    return rewards.score(IMAGES, PROMPTS, METADATA)[0].tolist(), rewards.warnings()


def test_batches_are_spread_over_all_servers():
    with Peer(levels) as a, Peer(levels) as b, Peer(levels) as c:
        assert score(remote(a.url, b.url, c.url)) == (LEVELS, [])
        assert min(len(p.requests) for p in (a, b, c)) >= 1
        assert sum(len(p.requests) for p in (a, b, c)) == 4
        asked = [
            entry["image"]
            for peer in (a, b, c)
            for _, _, body in peer.requests
            for entry in json.loads(body)["items"]
        ]
        assert len(asked) == len(set(asked)) == 8  # every picture once


@pytest.mark.parametrize("dead", [hang_up, (503, b""), (200, b"no json"), "gone", "hangs"])
def test_the_work_of_a_dead_server_goes_to_the_others(dead):
    slow = dead == "hangs"
    behaviour = (lambda h, r: time.sleep(4)) if slow else dead
    with Peer(levels) as a, Peer(levels if dead == "gone" else behaviour) as b:
        if dead == "gone":
            b.server.shutdown()
            b.server.server_close()
        reward = remote(a.url, b.url, deadline_s=3.0 if slow else 60.0)
        scores, said = score(reward)
        assert scores == LEVELS
        assert len(said) == 1 and f"{b.url} fails" in said[0] and "other servers" in said[0]
        if dead == "gone":
            b.server.server_bind = lambda: None
            assert score(reward) == (LEVELS, [])  # told once


def test_one_that_comes_back_is_used_again():
    with Peer(levels) as a, Peer(hang_up, hang_up, levels) as b:
        reward = remote(a.url, b.url)
        said = []
        for _ in range(40):
            scores, notes = score(reward)
            assert scores == LEVELS
            said += notes
            if len(said) > 1:
                break
            time.sleep(0.02)
        assert "answers again" in said[-1] and b.url in said[-1]


def test_where_all_are_dead_the_error_names_them():
    with Peer(hang_up) as a, Peer((503, {"error": "busy"})) as b:
        reward = remote(a.url, b.url, retries=1)
        with pytest.raises(RewardError) as told:
            score(reward)
        assert a.url in str(told.value) and b.url in str(told.value) and "busy" in str(told.value)


def test_a_request_at_fault_is_no_server_s_fault():
    with Peer((422, {"error": "bad"})) as a, Peer((422, {"error": "bad"})) as b:
        with pytest.raises(RewardError, match="422: bad"):
            remote(a.url, b.url).score(IMAGES[:1], PROMPTS[:1], METADATA[:1])
        assert len(a.requests) + len(b.requests) == 1


def test_checking_several():
    with running([Brightness()]) as url, Peer(good, rewards=["other"]) as other:
        dead = "http://127.0.0.1:1"
        told = check("remote", url=[url, dead], reward="bright")
        assert told.startswith(f"bright served at {url} (no server at {dead}")
        with pytest.raises(MarbleError, match="serves other, not 'bright'"):
            check("remote", url=[url, other.url], reward="bright")
        with pytest.raises(MarbleError, match="no server at"):
            check("remote", url=[dead], reward="bright")
    with pytest.raises(MarbleError, match="once"):
        remote("http://127.0.0.1:1", "http://127.0.0.1:1/")
    with pytest.raises(MarbleError, match="at least one"):
        remote()


# -- processes of their own -----------------------------------------------------------------------

SLOW = """
import os, time
def slow(images, prompts, metadata):
    if "hang" in prompts: time.sleep(600)
    return [float(os.getpid())] * len(images)
"""


def test_the_deadline_of_a_server_ends_the_work(tmp_path):
    """The request that hangs fails; the next one is answered, by a new process."""
    (tmp_path / "slow.py").write_text(SLOW)
    reward = load(f"{tmp_path / 'slow.py'}:slow", isolate=True)
    with running([reward], deadline_s=1.0) as url:
        (before,) = ask(url, [item()], name="slow").json()["scores"]
        hung = ask(url, [item(prompt="hang")], name="slow")
        assert hung.status_code in (500, 504) and "within 1 s" in hung.json()["error"]
        until = time.monotonic() + 30
        while ask(url, [item()], name="slow").status_code != 200:  # it loads again meanwhile
            assert time.monotonic() < until
            time.sleep(0.2)
        assert not psutil.pid_exists(int(before))
