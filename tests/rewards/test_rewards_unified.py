"""The vision-language judge: what is sent, what is understood, what is no score."""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from _peers import Peer

from marble.errors import MarbleError, RewardError
from marble.rewards import RewardSet, load
from marble.rewards.http import WrongAnswer
from marble.rewards.pictures import from_png
from marble.rewards.unifiedreward import UnifiedReward, read_score

PICTURES = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
PROMPTS = ["a dog", "a {prompt} with braces {x}", "three cats"]
METAS = [{"source": "general"}] * 3


def says(text):
    return lambda handler, request: (200, {"choices": [{"message": {"content": text}}]})


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Final Score: 3", 3),
        ("Good.\nFinal Score: 4.25", 4.25),
        ("**Final Score:** 2.5", 2.5),
        ("**Final Score: 2.5**", 2.5),
        ("final score = 1", 1),
        ("Final Score: 4.5/5", 4.5),
        ("Final Score: 1 at first, but no.\nFinal Score: 5", 5),
        ("<think>Final Score: 2?</think> Final Score: <3.5>", 3.5),
        (" 4.5 ", 4.5),
    ],
)
def test_scores_are_read(reply, value):
    assert read_score(reply, 1, 5) == value


@pytest.mark.parametrize(
    "reply",
    [
        *("", "no idea", "Score: high", "Final Score:", "Final Score: five", "I see 3 dogs"),
        *("Final Score: 7", "Final Score: 0", "Final Score: -3", "Final Score: 45/100", "nan"),
        *("Final Score: NaN", "1e999", "3 4", "Final Score: inf"),
    ],
)
def test_what_is_no_score_is_refused(reply):
    with pytest.raises(WrongAnswer):
        read_score(reply, 1, 5)


def test_each_picture_goes_out_once_with_its_own_prompt(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k")

    def judge(handler, request):
        (message,) = request["messages"]
        picture, text = message["content"]
        sent = from_png(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
        index = next(i for i, p in enumerate(PICTURES) if torch.equal(p, sent))
        assert text["text"].endswith(f"Caption: {PROMPTS[index]}")
        assert "from 1 (worst) to 5 (best)" in text["text"]
        assert request["model"] == "judge" and request["temperature"] == 0
        return says(f"Final Score: {1.5 + index}")(handler, request)

    with Peer(judge) as peer:
        reward = UnifiedReward(peer.url, model="judge", api_key_env="JUDGE_KEY", retries=0)
        scores = RewardSet([reward]).score(PICTURES, PROMPTS, METAS)
        assert len(peer.requests) == 3
        path, headers, _ = peer.requests[0]
        assert path == "/chat/completions" and headers["authorization"] == "Bearer k"
    np.testing.assert_array_equal(scores[0], [1.5, 2.5, 3.5])


def test_an_unreadable_reply_is_asked_for_again_and_then_an_error():
    with Peer(says("hm"), says("Final Score: 9"), says("Final Score: 2")) as peer:
        reward = load("unifiedreward", url=peer.url, parallel=1)
        assert reward.score(PICTURES[:1], PROMPTS[:1], METAS[:1]).tolist() == [2.0]
    with Peer(says("I would rather not")) as peer:
        reward = load("unifiedreward", url=peer.url, retries=1)
        with pytest.raises(RewardError, match=r"unifiedreward failed on 'a dog'.*no final score"):
            RewardSet([reward]).score(PICTURES, PROMPTS, METAS)


@pytest.mark.parametrize("answer", [{}, [], {"choices": []}, {"choices": [{"message": {}}]}])
def test_what_is_no_completion_is_refused(answer):
    with Peer((200, answer)) as peer, pytest.raises(RewardError):
        load("unifiedreward", url=peer.url, retries=0).score(PICTURES, PROMPTS, METAS)


def test_own_template_and_scale():
    def judge(handler, request):
        assert request["messages"][0]["content"][1]["text"] == "0..10? a dog"
        return says("Final Score: 8/10")(handler, request)

    with Peer(judge) as peer:
        reward = UnifiedReward(peer.url, template="{low}..{high}? {prompt}", low=0, high=10)
        assert reward.range == (0.0, 10.0)
        assert reward.score(PICTURES[:1], PROMPTS[:1], METAS[:1]).tolist() == [8.0]
    with pytest.raises(MarbleError, match="must contain"):
        UnifiedReward(template="how good?")


def test_payload_is_plain_json_with_a_png():
    with Peer(says("Final Score: 3")) as peer:
        UnifiedReward(peer.url).score(PICTURES[:1], PROMPTS[:1], METAS[:1])
    payload = json.loads(peer.requests[0][2])
    url = payload["messages"][0]["content"][0]["image_url"]["url"]
    assert base64.b64decode(url.split(",")[1]).startswith(b"\x89PNG")
