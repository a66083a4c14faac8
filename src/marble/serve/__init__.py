"""Rewards over HTTP: JSON with PNG bytes, batched, bounded, guarded by a key. No pickle."""

from marble.serve.run import serve

__all__ = ["serve"]
