"""Fine-tune diffusion models on many rewards at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marble.balance import Balancer

__all__ = ["Balancer", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `import marble` stays free of torch, which takes a second to import.
    if name == "Balancer":
        from marble.balance import Balancer

        return Balancer
    raise AttributeError(f"module 'marble' has no attribute {name!r}")
