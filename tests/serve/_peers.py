"""Servers for the tests, on loopback only: a real one, and peers that behave as scripted."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from marble.serve.app import make_app
from marble.serve.run import make_server
from marble.serve.settings import Settings


@contextmanager
def running(rewards, **settings):
    """The address of a `marble serve` with these reward objects."""
    settings = Settings(**settings)
    with running_app(make_app(rewards, settings), settings=settings) as url:
        yield url


@contextmanager
def running_app(app, port=0, settings=None):
    settings = replace(settings or Settings(), port=port)
    server = make_server(app, settings, log_level="error", lifespan="on")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive() and time.monotonic() < until, "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


class Peer:
    """Answers the n-th request with the n-th behaviour, the last one for all that follow.

    A behaviour is a status with a body (bytes, or something for JSON), or a callable that gets the
    handler and the request's JSON. Asked for its health it names `rewards`.
    """

    def __init__(self, *behaviours, rewards=()):
        self.behaviours = list(behaviours)
        self.requests = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                peer.requests.append((self.path, dict(self.headers), body))
                turn = min(len(peer.requests), len(peer.behaviours)) - 1
                behaviour = peer.behaviours[turn]
                if callable(behaviour):
                    behaviour = behaviour(self, json.loads(body))
                if behaviour is None:  # it has answered, or hung up, by itself
                    self.close_connection = True
                    return
                self.answer(*behaviour)

            def do_GET(self):
                self.answer(*((200, {"rewards": rewards}) if rewards else (501, b"")))

            def answer(self, status, content):
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
