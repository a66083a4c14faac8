"""Asking a server that may be slow, gone, restarting or wrong: deadline, retries, checks."""

from __future__ import annotations

import functools
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from marble.errors import MarbleError, RewardError

T = TypeVar("T")

#: Statuses that another attempt may cure; any other one is the request's own fault.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Refused(RewardError):
    """The server will not take this request, however often it is sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WrongAnswer(ValueError):
    """The server answered, but not with what was asked for."""


class TryLater(Exception):
    """An attempt failed in a way that another one may not; `after`: seconds the server asks for."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


@dataclass(frozen=True)
class Endpoint:
    """A server's base URL and how patiently it is asked.

    Attempt i waits first⋅2^i seconds, at most `longest`, each time ±50 % so that many clients of a
    server that comes back do not return at the same moment. `deadline_s` bounds a whole call, with
    all attempts and an answer that trickles in.
    """

    url: str
    api_key: str | None = None
    deadline_s: float = 120.0
    retries: int = 5
    first: float = 0.25
    longest: float = 10.0
    max_answer_bytes: int = 16 << 20
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MarbleError(f"url: {self.url!r} is no address; give e.g. http://127.0.0.1:8765")
        if self.deadline_s <= 0 or self.retries < 0:
            raise MarbleError("deadline_s must be positive and retries not negative")

    def post(self, path: str, payload: dict[str, Any], read: Callable[[Any], T]) -> T:
        """`read` of the JSON that comes back; `read` raises `WrongAnswer` for what it cannot be."""
        body = json.dumps(payload, allow_nan=False).encode()
        until = time.monotonic() + self.deadline_s
        cause = "no attempt was made"
        for attempt in range(self.retries + 1):
            wait: float | None = None
            try:
                return read(self.once(path, body, until))
            except Refused:
                raise
            except TryLater as later:
                cause, wait = str(later), later.after
            except WrongAnswer as wrong:
                cause = str(wrong)
            if attempt == self.retries:
                break
            pause = self.pause(attempt, wait)
            if time.monotonic() + pause >= until:
                raise RewardError(f"{self.url}: no answer within {self.deadline_s:g} s ({cause})")
            self.sleep(pause)
        raise RewardError(f"{self.url}: gave up after {self.retries + 1} attempts ({cause})")

    def pause(self, failures: int, wait: float | None) -> float:
        """Seconds to leave the server alone after so many failures before this one."""
        pause = min(self.longest, self.first * 2**failures) * random.uniform(0.5, 1.5)
        return max(pause, min(wait or 0.0, self.longest))

    def once(self, path: str, body: bytes, until: float) -> Any:
        """One attempt; `TryLater` where another one may succeed."""
        httpx = _httpx()
        left = until - time.monotonic()
        if left <= 0:
            raise TryLater("the deadline has passed")
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        # A proxy set for the outside world must not come between us and this very machine.
        outside = urlsplit(self.url).hostname not in LOOPBACK
        try:
            with (
                httpx.Client(timeout=left, trust_env=outside, verify=_tls()) as client,
                client.stream(
                    "POST", self.url.rstrip("/") + path, content=body, headers=headers
                ) as answer,
            ):
                content = self._content(answer, until)
        except httpx.TimeoutException:
            raise TryLater("it did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TryLater(f"{type(error).__name__}: {error}") from None
        return self._parsed(answer, content)

    def _content(self, answer: Any, until: float) -> bytes:
        content = bytearray()
        for chunk in answer.iter_bytes():
            content += chunk
            if len(content) > self.max_answer_bytes:
                raise TryLater(f"its answer is longer than {self.max_answer_bytes} bytes")
            if time.monotonic() > until:
                raise TryLater("its answer trickles in too slowly")
        return bytes(content)

    def _parsed(self, answer: Any, content: bytes) -> Any:
        if answer.status_code in PASSING:
            after = answer.headers.get("retry-after", "")
            told = f"status {answer.status_code}: {_said(content)}"
            raise TryLater(told, float(after) if after.isdigit() else None)
        if answer.status_code != 200:
            raise Refused(
                answer.status_code,
                f"{self.url} refuses with status {answer.status_code}: {_said(content)}",
            )
        try:
            return json.loads(content, parse_constant=_no_constant)
        except WrongAnswer:
            raise
        except (ValueError, RecursionError):
            raise WrongAnswer("its answer is not JSON") from None


def key_from(variable: str | None) -> str | None:
    """The API key in an environment variable; None where no variable is named or it is empty."""
    return (os.environ.get(variable) or None) if variable else None


def _no_constant(name: str) -> float:
    raise WrongAnswer(f"its answer contains {name}, which is no JSON number")


def _said(content: bytes) -> str:
    """What a server says of an error, in one short line."""
    try:
        told = json.loads(content)
        text = told.get("error", told) if isinstance(told, dict) else told
        text = text.get("message", text) if isinstance(text, dict) else text
    except (ValueError, RecursionError):
        text = content[:400].decode(errors="replace")
    return " ".join(str(text).split())[:300] or "no reason given"


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        needs = 'rewards over HTTP need httpx: pip install "marble-rl[rewards]"'
        raise MarbleError(needs) from None
    return httpx


@functools.cache
def _tls() -> Any:
    """Certificates take longer to read than a request to make: once for all clients."""
    return _httpx().create_ssl_context()


def get_json(url: str, path: str, timeout_s: float = 3.0) -> dict[str, Any]:
    """One quick look at a server, without retries: for checks before a run."""
    Endpoint(url)  # refuses what is no address
    httpx = _httpx()
    outside = urlsplit(url).hostname not in LOOPBACK
    try:
        with httpx.Client(timeout=timeout_s, trust_env=outside, verify=_tls()) as client:
            answer = client.get(url.rstrip("/") + path)
        told = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise MarbleError(f"no server at {url} ({type(error).__name__})") from None
    if not isinstance(told, dict):
        raise MarbleError(f"{url}{path} answered with status {answer.status_code}")
    return told
