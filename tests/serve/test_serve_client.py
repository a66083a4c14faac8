"""The HTTP reward against peers that are slow, dead, restarting, lying or huge."""

import threading
import time

import numpy as np
import pytest
import torch
from _peers import Peer, running, running_app
from test_serve_server import Brightness

from marble.errors import MarbleError, RewardError
from marble.rewards import RewardSet, load
from marble.rewards.http import Endpoint
from marble.rewards.remote import Remote
from marble.serve.app import make_app
from marble.serve.settings import Settings

PICTURES = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 4, 4).contiguous()
PROMPTS = ["a", "b", "c", "d", "e"]
METAS = [{"source": "general"}] * 4 + [{"source": "dark"}]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Pauses a hundred times shorter; how long they are meant to be is tested on its own."""
    original = Endpoint.__post_init__

    def quick(self):
        original(self)
        object.__setattr__(self, "first", 0.002)
        object.__setattr__(self, "longest", 0.05)

    monkeypatch.setattr(Endpoint, "__post_init__", quick)


def score(url, **options):
    reward = load("remote", url=url, reward="bright", name="bright", **options)
    return RewardSet([reward]).score(PICTURES, PROMPTS, METAS)[0]


def test_the_trainer_does_not_notice_where_a_reward_lives():
    here = RewardSet([Brightness()]).score(PICTURES, PROMPTS, METAS)
    with running([Brightness()]) as url:
        for batch_size in (1, 2, 32):
            np.testing.assert_array_equal(score(url, batch_size=batch_size), here[0])


def test_a_batch_too_large_for_the_server_is_split():
    reward = Brightness()
    with running([reward], max_items=2) as url:
        np.testing.assert_array_equal(score(url), [0, 1, 2, 3, np.nan])
    with running([Brightness()], max_body_bytes=50) as url, pytest.raises(RewardError, match="413"):
        score(url)


def test_the_key_travels(monkeypatch):
    monkeypatch.setenv("MARBLE_API_KEY", "secret")
    with running([Brightness()], api_key="secret") as url:
        assert np.isnan(score(url)[4])
    monkeypatch.setenv("MARBLE_API_KEY", "other")
    with (
        running([Brightness()], api_key="secret") as url,
        pytest.raises(RewardError, match=r"bright failed on 'a'.*401.*API key"),
    ):
        score(url)


def good(handler, request):
    return 200, {"scores": [0.5] * len(request["items"])}


def lies(*scores):
    return lambda handler, request: (200, {"scores": list(scores)})


def hang_up(handler, request):
    handler.connection.close()


def trickle(handler, request):
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    for _ in range(200):
        try:
            handler.wfile.write(b" ")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (lies(0.1, 0.2), "2 scores for 5 pictures"),
        (lies(*[0.1] * 6), "6 scores for 5 pictures"),
        (lies("0.1", 0, 0, 0, 0), "'0.1' as a score"),
        (lies(True, 0, 0, 0, 0), "'True' as a score"),
        (lies([1], 0, 0, 0, 0), "as a score"),
        ((200, b'{"scores": [NaN, 0, 0, 0, 0]}'), "NaN"),
        ((200, b'{"scores": [Infinity, 0, 0, 0, 0]}'), "Infinity"),
        ((200, b'{"scores": [1e999, 0, 0, 0, 0]}'), "'inf' as a score"),
        ((200, b"\x80\x04\x95pickle"), "not JSON"),
        ((200, b"[" * 100_000), "not JSON"),
        ((200, {"scores": "0.5"}), "no list of scores"),
        ((200, [0.5] * 5), "no list of scores"),
        ((200, b" " * (17 << 20)), "longer than"),
        ((500, {"error": "out of memory"}), "status 500: out of memory"),
        ((302, b""), "refuses with status 302"),
        (hang_up, "Error"),
    ],
)
def test_no_lie_becomes_a_score(behaviour, said):
    with Peer(behaviour) as peer:
        with pytest.raises(RewardError) as told:
            Remote(peer.url, "bright", retries=1).score(PICTURES, PROMPTS, METAS)
        assert said in str(told.value)
        with pytest.raises(RewardError, match=r"reward bright failed on 'a'"):
            score(peer.url, retries=0)


def test_a_peer_that_recovers_is_forgiven():
    with Peer(hang_up, (503, b""), lies(1), (200, b"no"), good) as peer:
        np.testing.assert_array_equal(score(peer.url, retries=4), [0.5] * 5)
        assert len(peer.requests) == 5
        assert len({body for _, _, body in peer.requests}) == 1  # the very same question each time


def test_a_request_at_fault_is_not_repeated():
    with Peer((422, {"error": "bad"})) as peer, pytest.raises(RewardError, match="422: bad"):
        Remote(peer.url, "bright").score(PICTURES, PROMPTS, METAS)
    assert len(peer.requests) == 1


@pytest.mark.parametrize("behaviour", [lambda h, r: time.sleep(3), trickle], ids=["slow", "drips"])
def test_a_slow_peer_ends_at_the_deadline(behaviour):
    with Peer(behaviour) as peer:
        began = time.monotonic()
        with pytest.raises(RewardError, match=r"within 0\.3 s"):
            Remote(peer.url, "bright", deadline_s=0.3).score(PICTURES, PROMPTS, METAS)
        assert time.monotonic() - began < 2.5


def test_a_dead_peer_is_named():
    with Peer(good) as peer:
        pass  # and gone
    with pytest.raises(RewardError, match=r"bright failed on 'a'.*3 attempts.*ConnectError"):
        score(peer.url, retries=2)


def test_a_restarting_server_is_waited_for():
    """Down, then up again on the same port while the client is still trying."""
    app = make_app([Brightness()], Settings())
    with running_app(app) as url:
        port = int(url.rsplit(":", 1)[1])
        score(url)

    def later():
        time.sleep(0.3)
        with running_app(make_app([Brightness()], Settings()), port=port):
            done.wait(10)

    done = threading.Event()
    thread = threading.Thread(target=later)
    thread.start()
    try:
        values = score(url, retries=100, deadline_s=10)
    finally:
        done.set()
        thread.join()
    np.testing.assert_array_equal(values, [0, 1, 2, 3, np.nan])


def test_skip_sample_leaves_nan_and_says_why():
    with Peer(lies(0.1, 0.2)) as peer:
        rewards = RewardSet(
            [load("remote", url=peer.url, reward="bright", retries=0)], on_error="skip_sample"
        )
        assert np.isnan(rewards.score(PICTURES, PROMPTS, METAS)).all()
        assert "scores for" in rewards.warnings()[0]


def test_check_before_a_run():
    from marble.rewards import check

    with running([Brightness()]) as url:
        assert check("remote", url=url, reward="bright") == f"bright served at {url}"
        with pytest.raises(MarbleError, match="serves bright, not 'dark'"):
            check("remote", url=url, reward="dark")
    with pytest.raises(MarbleError, match="no server at"):
        check("remote", url=url, reward="bright")


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "file:///etc/passwd", "ftp://x"])
def test_addresses_that_are_none(url):
    with pytest.raises(MarbleError, match="no address"):
        Remote(url, "bright")
