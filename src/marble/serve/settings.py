"""How a reward server behaves, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from marble.data import MAX_PROMPT
from marble.errors import MarbleError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8765
    api_key: str | None = None
    isolate: bool = True
    """Each reward in a process of its own, which is killed at the deadline and started again."""
    batch_size: int = 32
    """Pictures scored at once; requests that wait together are scored together."""
    gather_s: float = 0.005
    """How long the first of a batch waits for company."""
    max_requests: int = 128
    """Requests waiting or being scored; one more is told to come back (503)."""
    max_body_bytes: int = 64 << 20
    max_memory_bytes: int = 1 << 30
    """Bodies and decoded pictures of all requests under way; more is told to come back (503)."""
    max_items: int = 256
    max_pixels: int = 4096 * 4096
    max_prompt: int = MAX_PROMPT
    """Characters of a prompt."""
    max_metadata: int = 1 << 16
    """Characters of an item's metadata, as JSON."""
    deadline_s: float = 300.0
    body_s: float = 30.0
    """Seconds a request's body may take to arrive."""
    head_s: float = 10.0
    """Seconds a connection may be open without a request under way."""
    max_connections: int = 512
    max_per_address: int = 256

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.api_key:
            raise MarbleError(
                f"listening on {self.host} lets other machines in, which needs a key: set "
                "MARBLE_API_KEY here and for the trainer, or leave out --host"
            )
