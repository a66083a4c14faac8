"""Several servers of one reward: work is spread over them, and goes on when some of them die."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from marble.errors import MarbleError, RewardError
from marble.rewards.http import Endpoint, TryLater, WrongAnswer

S = TypeVar("S")
T = TypeVar("T")


class Fleet:
    """Endpoints with the same reward, each asked one thing at a time as long as others are free.

    A server that fails is left alone for a pause that grows with its failures, and its work goes to
    the next one. A request fails when every server has refused it `retries` + 1 times or the
    deadline has passed. With one server this is `Endpoint.post`.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        if len({e.url.rstrip("/") for e in endpoints}) < len(endpoints) or not endpoints:
            raise MarbleError("url: name each server once, and at least one")
        self.endpoints = list(endpoints)
        self._busy = [0] * len(endpoints)
        self._failures = [0] * len(endpoints)
        self._rests = [0.0] * len(endpoints)
        """Until when a server is left alone, by the monotonic clock."""
        self._notes: list[str] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.endpoints)

    def map(self, work: Callable[[S], T], pieces: Sequence[S]) -> list[T]:
        """`work` of every piece, as many at once as there are servers."""
        if min(len(self), len(pieces)) < 2:
            return [work(piece) for piece in pieces]
        with ThreadPoolExecutor(min(len(self), len(pieces))) as pool:
            return list(pool.map(work, pieces))

    def take_notes(self) -> list[str]:
        """Which servers went and came back since the last call."""
        with self._lock:
            notes, self._notes = self._notes, []
            return notes

    def post(self, path: str, payload: dict[str, Any], read: Callable[[Any], T]) -> T:
        """As `Endpoint.post`, of whichever server answers."""
        first = self.endpoints[0]
        if len(self) == 1:
            return first.post(path, payload, read)
        body = json.dumps(payload, allow_nan=False).encode()
        until = time.monotonic() + first.deadline_s
        causes: dict[str, str] = {}
        for _ in range((first.retries + 1) * len(self)):
            which = self._wait_for_one(until)
            if which is None:
                break
            endpoint = self.endpoints[which]
            now = time.monotonic()
            try:
                # Half of what is left: a server that hangs must leave time to ask another.
                answer = read(endpoint.once(path, body, now + (until - now) / 2))
                self._done(which)
                return answer
            except (TryLater, WrongAnswer) as error:
                causes[endpoint.url] = str(error)
                self._done(which, error)
            except BaseException:
                self._done(which, failed=False)
                raise
        told = "; ".join(f"{url}: {cause}" for url, cause in causes.items()) or "all at rest"
        raise RewardError(f"none of {len(self)} servers answered within their retries ({told})")

    def _wait_for_one(self, until: float) -> int | None:
        """The least busy server that is not at rest, taken; None if there is none in time."""
        while True:
            with self._lock:
                now = time.monotonic()
                ready = [i for i, rest in enumerate(self._rests) if rest <= now]
                if ready:
                    chosen = min(ready, key=lambda i: (self._busy[i], self._failures[i] > 0, i))
                    self._busy[chosen] += 1
                    return chosen
                wake = min(self._rests)
            if wake >= until:
                return None
            self.endpoints[0].sleep(wake - now)

    def _done(
        self, which: int, error: TryLater | WrongAnswer | None = None, *, failed: bool | None = None
    ) -> None:
        url = self.endpoints[which].url
        with self._lock:
            self._busy[which] -= 1
            if failed is False:
                return
            before = self._failures[which]
            if error is None:
                self._failures[which] = 0
                if before:
                    self._notes.append(f"{url} answers again")
                return
            self._failures[which] = before + 1
            wait = error.after if isinstance(error, TryLater) else None
            self._rests[which] = time.monotonic() + self.endpoints[which].pause(before, wait)
            if not before:
                self._notes.append(f"{url} fails ({error}); its work goes to the other servers")
