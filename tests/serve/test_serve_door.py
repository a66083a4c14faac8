"""What strangers can do to a reward server without a key: nothing that others notice."""

import logging
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from _peers import running
from test_serve_server import Brightness, ask, item

from marble.serve.sparing import Sparing


def connect(url, source=None):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection(
        (host, int(port)), 10, source_address=(source, 0) if source else None
    )


def closed_within(connection, seconds):
    """Whether the server has closed the connection by then, and how long it took."""
    connection.settimeout(seconds)
    began = time.monotonic()
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return None
    except OSError:
        pass
    return time.monotonic() - began


HEAD = b"POST /v1/rewards/bright/score HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize("sent", [b"", b"G", HEAD, HEAD + b"x: " + b"y" * 3000])
def test_a_head_has_a_time_limit(sent):
    with running([Brightness()], head_s=0.4) as url, connect(url) as half:
        half.sendall(sent)
        took = closed_within(half, 8)
        assert took is not None and took >= 0.3
        assert ask(url, [item()]).status_code == 200


def test_a_head_that_trickles_in_has_the_same_time_limit():
    with running([Brightness()], head_s=0.5) as url, connect(url) as drip:
        drip.settimeout(0.05)
        began = time.monotonic()
        with pytest.raises(OSError):
            for byte in HEAD * 100:
                drip.sendall(bytes([byte]))
                time.sleep(0.05)
                try:
                    if not drip.recv(1):
                        raise ConnectionResetError
                except TimeoutError:
                    pass
        assert time.monotonic() - began < 8


def test_the_second_request_of_a_connection_has_it_too():
    with running([Brightness()], head_s=0.5) as url, connect(url) as kept:
        kept.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        kept.settimeout(5)
        assert b"200 OK" in kept.recv(4096)
        kept.sendall(b"GET /health HTT")
        assert closed_within(kept, 4) is not None


def test_a_body_nobody_reads_does_not_keep_a_connection():
    with running([Brightness()], head_s=0.5, api_key="k") as url, connect(url) as half:
        half.sendall(HEAD + b"content-length: 1000000\r\n\r\n{")
        half.settimeout(5)
        assert b"401" in half.recv(4096)
        for _ in range(40):
            try:
                half.sendall(b" ")
            except OSError:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("still open after 4 s")


def test_a_request_under_way_is_not_idle():
    with running([Brightness(delay=1.2)], head_s=0.3) as url:
        assert ask(url, [item(5)]).json()["scores"] == [5.0]


def test_silent_connections_displace_their_own_kind_only():
    """More than the limit, held open and reopened; requests pass all the while."""
    with ExitStack() as stack:
        url = stack.enter_context(
            running([Brightness()], head_s=30, max_connections=40, max_per_address=40)
        )
        held = [stack.enter_context(connect(url)) for _ in range(60)]
        for i in range(10):
            assert ask(url, [item(i)]).json()["scores"] == [float(i)]
            held += [stack.enter_context(connect(url)) for _ in range(20)]
        gone = [closed_within(h, 0.01) is not None for h in held]
        assert all(gone[:60]) and not all(gone[-10:])  # the oldest first


def test_one_address_cannot_take_all_places():
    with ExitStack() as stack:
        url = stack.enter_context(
            running([Brightness()], head_s=30, max_connections=30, max_per_address=20)
        )
        mine = [stack.enter_context(connect(url)) for _ in range(5)]
        for _ in range(60):
            stack.enter_context(connect(url, "127.0.0.2"))
        assert ask(url, [item(3)]).json()["scores"] == [3.0]
        assert all(closed_within(m, 0.01) is None for m in mine)


def test_where_all_are_busy_a_newcomer_is_turned_away():
    with (
        running([Brightness(delay=1.5)], max_connections=2, max_per_address=2) as url,
        ExitStack() as stack,
    ):
        for _ in range(2):
            busy = stack.enter_context(connect(url))
            body = b'{"items": []}'
            busy.sendall(
                HEAD + b"content-type: application/json\r\ncontent-length: 90\r\n\r\n" + body
            )
        time.sleep(0.3)
        assert closed_within(stack.enter_context(connect(url)), 3) is not None


# -- memory ---------------------------------------------------------------------------------------


def test_requests_that_do_not_fit_together_are_told_to_come_back():
    with running([Brightness(delay=0.5)], max_memory_bytes=60_000) as url:
        large = [item(7, size=(100, 100))]  # 30 000 bytes of pixels
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: ask(url, large), range(6)))
        codes = sorted({a.status_code for a in answers})
        assert codes == [200, 503]
        assert {a.headers["retry-after"] for a in answers if a.status_code == 503} == {"1"}
        assert ask(url, large).status_code == 200  # all of it was given back
        assert ask(url, large * 3).status_code == 413  # which can never fit: the client splits


def test_what_a_request_unpacks_to_is_counted_before_it_is_unpacked():
    """256 pictures of 16 million pixels fit into a few MB of PNG."""
    import base64

    from test_serve_server import bomb

    one = item() | {"image": base64.b64encode(bomb(4096, 4096)).decode()}
    with running([Brightness()]) as url:
        answer = ask(url, [one] * 256)
        assert answer.status_code == 413 and "memory" in answer.json()["error"]


# -- hang-ups -------------------------------------------------------------------------------------


@contextmanager
def logged():
    """Everything the loggers of a running server say, tracebacks included."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(logging.Formatter().format(record))

    handler = Keep()
    loggers = [logging.getLogger(n) for n in ("uvicorn.error", "asyncio", "marble.serve")]
    for log in loggers:
        log.addHandler(handler)
    try:
        yield lines
    finally:
        for log in loggers:
            log.removeHandler(handler)


def test_a_hang_up_is_no_traceback():
    reward = Brightness(delay=0.3)
    with running([reward], gather_s=0) as url, logged() as lines:
        for body in (b"", b"{", None):
            with connect(url) as half:
                half.sendall(HEAD + b"content-type: application/json\r\n")
                if body is not None:
                    half.sendall(b"content-length: 100\r\n\r\n" + body)
                time.sleep(0.1)
        time.sleep(0.3)
        assert ask(url, [item()]).status_code == 200
    assert lines == []


def test_whoever_hangs_up_is_not_scored_and_frees_a_place():
    reward, go = Brightness(), threading.Event()
    scored = reward.score
    reward.score = lambda *batch: go.wait(30) and scored(*batch)
    with running([reward], gather_s=0, max_requests=2, batch_size=1) as url:
        for level in (1, 2):  # the first is being scored, the second waits
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    f"{url}/v1/rewards/bright/score",
                    json={"items": [item(level)]},
                    timeout=1.0,
                    trust_env=False,
                )
        until = time.monotonic() + 20
        while httpx.get(f"{url}/health", trust_env=False).json()["requests"]:
            assert time.monotonic() < until
            time.sleep(0.02)
        go.set()
        assert ask(url, [item(3)]).json()["scores"] == [3.0]
        assert len(reward.calls) == 2


# -- the log --------------------------------------------------------------------------------------


def test_the_log_is_sparing():
    said = []
    log = logging.Logger("test")
    log.addFilter(spare := Sparing(most=3, seconds=60))
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log.addHandler(handler)
    for i in range(100):
        log.warning("bad request %d", i)
    log.warning("something else")
    assert said == ["bad request 0", "bad request 1", "bad request 2", "something else"]
    spare._kinds = {kind: (began - 61, n) for kind, (began, n) in spare._kinds.items()}
    for i in range(2):
        log.warning("bad request %d", i) if i else log.error("other line")
    assert said[-2:] == ["other line", "bad request 1"]


def test_the_next_line_says_how_many_were_left_out():
    said = []
    log = logging.Logger("test")
    log.addFilter(spare := Sparing(most=2, seconds=60))
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log.addHandler(handler)
    for i in range(12):
        if i == 11:
            spare._kinds = {kind: (began - 61, n) for kind, (began, n) in spare._kinds.items()}
        log.warning("%s", "x")
    assert said == ["x", "x", "x (9 more such lines were left out)"]


def test_nonsense_does_not_fill_the_log():
    with running([Brightness()]) as url, logged() as lines:
        logging.getLogger("uvicorn.error").setLevel("INFO")
        for _ in range(60):
            with connect(url) as rude:
                rude.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")
                assert b"400" in rude.recv(100)
    assert 1 <= sum("Invalid" in line for line in lines) <= 10


def test_more_connections_than_files_do_not_starve_it(tmp_path):
    """The command itself, under a limit of 300 open files that it cannot raise."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300));"
        "import sys; sys.argv = ['marble', 'serve', 'diversity', 'diversity.by=pixels', "
        "'--port', '0', '--no-isolate'];"
        "from marble.cli import main; main()"
    )
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen([sys.executable, "-c", script], stderr=file, stdout=file)
    with ExitStack() as stack:
        stack.callback(server.wait)
        stack.callback(server.kill)
        until = time.monotonic() + 60
        while "http://127.0.0.1:" not in log.read_text():
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        url = next(w for w in log.read_text().split() if w.startswith("http://127.0.0.1:"))
        for _ in range(600):
            stack.enter_context(connect(url))
        items = [item(level) | {"group": 1} for level in (10, 61)]
        answer = ask(url, items, name="diversity")
        assert answer.json()["scores"] == pytest.approx([0.2, 0.2])
        assert log.stat().st_size < 20_000
