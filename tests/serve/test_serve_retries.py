"""How long a client waits between attempts."""

import pytest
from _peers import Peer

from marble.errors import RewardError
from marble.rewards.http import Endpoint


def pauses(peer_answer, **options):
    waited = []
    with Peer(peer_answer) as peer, pytest.raises(RewardError, match="gave up after 7 attempts"):
        Endpoint(peer.url, retries=6, sleep=waited.append, **options).post("/", {}, lambda a: a)
    return waited


def test_pauses_double_up_to_a_limit_with_jitter():
    waited = pauses((503, b""), first=0.2, longest=1.0)
    meant = [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert len(waited) == 6
    assert all(0.5 * m <= w <= 1.5 * m for w, m in zip(waited, meant))
    assert len(set(waited)) == 6


def test_a_server_that_says_when_is_believed_within_reason():
    def busy(handler, request):
        handler.send_response(503)
        handler.send_header("retry-after", "2")
        handler.send_header("content-length", "0")
        handler.end_headers()

    assert all(2.0 <= w <= 2.0 for w in pauses(busy, first=0.001, longest=5.0))
    assert all(w == 0.5 for w in pauses(busy, first=0.001, longest=0.5))


def test_no_pause_outlasts_the_deadline():
    with Peer((503, b"")) as peer, pytest.raises(RewardError, match=r"within 0\.2 s"):
        Endpoint(peer.url, deadline_s=0.2, retries=50, first=0.15).post("/", {}, lambda a: a)
