"""Connections: how many there may be, and how long one may take to say what it wants.

A connection is *idle* while no request of it is under way: new, between two requests, or still
sending what nobody reads. An idle one is closed after `head_s` seconds. When there are too many,
from one address or in all, the longest idle one makes room for the newcomer: whoever opens
connections and says nothing only displaces its own kind. Where all are busy the newcomer is turned
away.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger("marble.serve")


class Door:
    """The open connections of one server, and the limits on them."""

    def __init__(self, most: int, most_each: int, head_s: float) -> None:
        self.most, self.most_each, self.head_s = most, most_each, head_s
        self.open: dict[str, set[Guarded]] = {}
        self.idle: dict[Guarded, None] = {}
        """In the order in which they became idle."""

    @property
    def count(self) -> int:
        return sum(map(len, self.open.values()))

    def admit(self, connection: Guarded) -> bool:
        """Whether a new connection may stay; closes another one for it if need be."""
        here = self.open.setdefault(connection.address, set())
        if len(here) >= self.most_each:
            others = (c for c in self.idle if c.address == connection.address)
        elif self.count >= self.most:
            others = (c for c in self.idle)
        else:
            here.add(connection)
            return True
        oldest = next(others, None)
        logger.warning(
            "too many connections, e.g. from %s: closing %s",
            connection.address,
            "idle ones" if oldest is not None else "new ones, as all others are busy",
        )
        if oldest is None:
            return False
        oldest.drop()
        self.open.setdefault(connection.address, set()).add(connection)
        return True

    def leave(self, connection: Guarded) -> None:
        here = self.open.get(connection.address, set())
        here.discard(connection)
        if not here:
            self.open.pop(connection.address, None)
        self.idle.pop(connection, None)

    def protocol(self) -> type[Guarded]:
        """What `uvicorn.Config(http=…)` takes."""
        return type("GuardedHere", (Guarded,), {"door": self})


class Guarded(H11Protocol):
    """uvicorn's HTTP with a `Door` in front."""

    door: Door
    address: str = ""
    _timer: asyncio.TimerHandle | None = None
    _admitted = False

    def connection_made(self, transport: Any) -> None:
        self.address = _who(transport.get_extra_info("peername"))
        self._admitted = self.door.admit(self)
        if not self._admitted:
            transport.abort()
            return
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        if self._admitted and not self.transport.is_closing():
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admitted:
            self._stop_timer()
            self.door.leave(self)
            super().connection_lost(exc)

    def drop(self) -> None:
        """Closes the connection at once."""
        self._stop_timer()
        self.door.leave(self)
        self.transport.abort()

    def _look(self) -> None:
        """Starts the clock of a connection that has become idle, stops that of one that is not."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
            self.door.idle.pop(self, None)
        elif self._timer is None:
            self._timer = self.loop.call_later(self.door.head_s, self.drop)
            self.door.idle[self] = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _who(peer: Any) -> str:
    """An address; of IPv6 the network, of which a single machine may have every address."""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (ValueError, TypeError, IndexError):
        return "unknown"
    if address.version == 6 and not address.ipv4_mapped:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
