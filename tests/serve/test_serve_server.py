"""The reward server: what it answers, what it refuses, and that nothing gets lost."""

import base64
import io
import itertools
import json
import pickle
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
import numpy as np
import pytest
import torch
from _peers import running
from PIL import Image

from marble.errors import MarbleError
from marble.rewards.base import Reward
from marble.rewards.pictures import from_png, to_png
from marble.serve.settings import Settings


class Brightness(Reward):
    """The mean level; does not apply to dark prompts; breaks on the prompt `break`."""

    name, range = "bright", (0.0, 255.0)

    def __init__(self, delay=0.0):
        self.calls, self.delay, self.threads = [], delay, set()

    def applies(self, metadata):
        return metadata.get("source") != "dark"

    def score(self, images, prompts, metadata):
        time.sleep(self.delay)
        self.calls.append(len(prompts))
        self.threads.add(threading.get_ident())
        if "break" in prompts:
            raise RuntimeError("no ink")
        return images.float().mean((1, 2, 3)).numpy()


def picture(level, size=(6, 8)):
    return torch.full((3, *size), level, dtype=torch.uint8)


def item(level=7, prompt="a", source="general", size=(6, 8)):
    return {
        "image": to_png(picture(level, size)),
        "prompt": prompt,
        "metadata": {"source": source},
    }


def ask(url, items, name="bright", **options):
    path = f"{url}/v1/rewards/{name}/score"
    return httpx.post(path, json={"items": items}, trust_env=False, timeout=20, **options)


@pytest.fixture(scope="module")
def server():
    reward = Brightness()
    with running([reward], max_body_bytes=200_000, max_pixels=64 * 64, max_items=8) as url:
        yield url, reward


def test_scores_come_back_in_order_and_inapplicable_is_null(server):
    url, _ = server
    items = [item(3), item(200, source="dark"), item(9, size=(8, 6)), item(255)]
    answer = ask(url, items)
    assert answer.status_code == 200
    assert answer.json() == {"reward": "bright", "scores": [3.0, None, 9.0, 255.0]}


def test_png_is_lossless():
    image = torch.randint(0, 256, (3, 17, 5), dtype=torch.uint8)
    assert torch.equal(from_png(to_png(image)), image)


def test_health_and_listing(server):
    url, _ = server
    health = httpx.get(f"{url}/health", trust_env=False).json()
    assert health["status"] == "ok" and health["rewards"] == ["bright"]
    listing = httpx.get(f"{url}/v1/rewards", trust_env=False).json()["rewards"]
    assert listing[0]["name"] == "bright" and listing[0]["range"] == [0.0, 255.0]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width, height):
    """A PNG of a few hundred bytes that claims, and would unpack to, a huge picture."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" * 100_000))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


def jpeg():
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x89PNG\r\n\x1a\nrubbish", "not a PNG"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "damaged PNG"),
        (base64.b64decode(to_png(picture(5)))[:-40], "damaged PNG"),
        (jpeg(), "not a PNG"),
        (b"", "not a PNG"),
        (bomb(50_000, 50_000), "at most"),
        (bomb(2**31 - 1, 1), "at most"),
        (bomb(64, 64)[:45], "damaged PNG"),
    ],
)
def test_bad_pictures_are_refused(server, raw, said):
    url, reward = server
    before = len(reward.calls)
    answer = ask(url, [item(), item() | {"image": base64.b64encode(raw).decode()}])
    assert answer.status_code == 422
    assert "items[1].image" in answer.json()["error"] and said in answer.json()["error"]
    assert len(reward.calls) == before  # not even the good one was scored


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no json", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "list"),
        (b'{"items": 3}', "list"),
        (b'{"items": []}', "at least one"),
        (b'{"items": [3]}', "must be an object"),
        (b'{"items": [{"prompt": "a"}]}', "base64"),
        (b'{"items": [{"image": "***", "prompt": "a"}]}', "not base64"),
        (json.dumps({"items": [item() | {"prompt": 3}]}).encode(), "must be text"),
        (json.dumps({"items": [item() | {"metadata": []}]}).encode(), "must be an object"),
    ],
)
def test_malformed_requests_are_refused(server, body, said):
    headers = {"content-type": "application/json"}
    path = f"{server[0]}/v1/rewards/bright/score"
    answer = httpx.post(path, content=body, headers=headers, trust_env=False)
    assert answer.status_code == 422 and said in answer.json()["error"]


def test_a_pickle_is_never_opened(server, tmp_path):
    url, _ = server
    payload = pickle.dumps(Malicious(str(tmp_path / "broken-into")))
    path = f"{url}/v1/rewards/bright/score"
    for kind in ("application/octet-stream", "application/json"):
        answer = httpx.post(path, content=payload, headers={"content-type": kind}, trust_env=False)
        assert answer.status_code == 422
    as_image = item() | {"image": base64.b64encode(payload).decode()}
    assert ask(url, [as_image]).status_code == 422
    assert not (tmp_path / "broken-into").exists()


def test_oversized_requests_are_refused(server):
    url, _ = server
    assert ask(url, [item()] * 9).status_code == 413
    path = f"{url}/v1/rewards/bright/score"
    headers = {"content-type": "application/json"}
    huge = httpx.post(path, content=b"x" * 300_000, headers=headers, trust_env=False)
    assert huge.status_code == 413

    def endless():  # no content-length to judge by
        for _ in range(100):
            yield b"x" * 10_000

    told = httpx.post(path, content=endless(), headers=headers, trust_env=False)
    assert told.status_code == 413 and "more than" in told.json()["error"]


def test_an_unknown_reward_is_404_and_names_those_there_are(server):
    answer = ask(server[0], [item()], name="nothing")
    assert answer.status_code == 404 and "bright" in answer.json()["error"]


def test_a_failing_reward_is_a_500_with_its_cause_and_does_not_fail_its_neighbours():
    reward = Brightness()
    with running([reward], gather_s=0.2) as url, ThreadPoolExecutor(3) as pool:
        prompts = ["a", "break", "b"]
        answers = list(pool.map(lambda p: ask(url, [item(4, prompt=p)]), prompts))
    assert [a.status_code for a in answers] == [200, 500, 200]
    assert "no ink" in answers[1].json()["error"]
    assert answers[0].json()["scores"] == answers[2].json()["scores"] == [4.0]


def test_64_concurrent_requests_are_answered_and_batched():
    reward = Brightness(delay=0.01)
    with running([reward], batch_size=16) as url, ThreadPoolExecutor(64) as pool:
        levels = list(range(64))
        answers = list(pool.map(lambda v: ask(url, [item(v), item(v + 100)]), levels))
    assert [a.status_code for a in answers] == [200] * 64
    assert [a.json()["scores"] for a in answers] == [[float(v), float(v + 100)] for v in levels]
    assert len(reward.calls) < 64 and sum(reward.calls) == 128  # together, and each picture once
    assert len(reward.threads) == 1


def test_one_request_too_many_is_told_to_come_back():
    reward, open_again = Brightness(), threading.Event()
    scored = reward.score
    reward.score = lambda *batch: open_again.wait(15) and scored(*batch)
    with running([reward], max_requests=2) as url, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, url, [item(v)]) for v in range(8)]
        turned_away = [done.result() for done in itertools.islice(as_completed(asked), 6)]
        assert [a.status_code for a in turned_away] == [503] * 6
        assert turned_away[0].headers["retry-after"] == "1"
        open_again.set()
        assert sorted(done.result().status_code for done in asked) == [200] * 2 + [503] * 6
        assert ask(url, [item()]).status_code == 200  # and afterwards there is room again


def test_a_slow_reward_ends_at_the_deadline():
    with running([Brightness(delay=1.0)], deadline_s=0.1) as url:
        answer = ask(url, [item()])
        assert answer.status_code == 504 and "0.1 s" in answer.json()["error"]


def test_a_body_that_trickles_in_does_not_hold_a_place_for_ever():
    with running([Brightness()], body_s=0.2, max_requests=1) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"POST /v1/rewards/bright/score HTTP/1.1\r\nhost: x\r\n"
                b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            )
            assert b"408" in slow.recv(100)
        assert ask(url, [item()]).status_code == 200


def test_key_is_asked_for():
    with running([Brightness()], api_key="secret") as url:
        assert ask(url, [item()]).status_code == 401
        for wrong in ("Bearer wrong", "secret", "Bearer secret2", "Bearer sécret"):
            headers = {"authorization": wrong.encode("latin-1")}
            assert ask(url, [item()], headers=headers).status_code == 401
        right = {"authorization": "Bearer secret"}
        assert ask(url, [item()], headers=right).status_code == 200
        assert httpx.get(f"{url}/v1/rewards", trust_env=False).status_code == 401
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200


def test_listening_beyond_this_machine_needs_a_key():
    for host in ("0.0.0.0", "192.168.0.3", "::"):
        with pytest.raises(MarbleError, match="needs a key"):
            Settings(host=host)
        assert Settings(host=host, api_key="k").host == host
    assert Settings().host == "127.0.0.1"
