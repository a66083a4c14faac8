"""Memory of the requests under way: bodies as they arrive, and pictures as they are decoded."""

from __future__ import annotations

from types import TracebackType

from marble.serve.refusal import Refusal


class Budget:
    """What all requests together may hold, in bytes."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    def share(self) -> Share:
        return Share(self)


class Share:
    """One request's part, given back at its end."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.held = budget, 0

    def take(self, count: int) -> None:
        if self.held + count > self.budget.most:
            raise Refusal(413, f"the request needs more than {self.budget.most} bytes of memory")
        if self.budget.used + count > self.budget.most:
            raise Refusal(503, "no memory for another request; try again", {"Retry-After": "1"})
        self.budget.used += count
        self.held += count

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.budget.used -= self.held
        self.held = 0
