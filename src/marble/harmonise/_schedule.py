"""When to solve, on how much of the step, and when to stop balancing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from marble.errors import MarbleError


@dataclass(frozen=True)
class Schedule:
    """A pure function of the optimiser step, so that a resumed run needs no state for it.

    n: refresh every n steps, step 0 included.
    probe: the fraction of a refresh step's micro-batches that keep their K gradients.
    consolidate: the last so many of `total_steps` take uniform coefficients.
    """

    n: int = 10
    probe: float = 1.0
    consolidate: int = 0
    total_steps: int | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise MarbleError(f"n = {self.n}: refresh every n ≥ 1 optimiser steps.")
        if not 0.0 < self.probe <= 1.0:
            raise MarbleError(f"probe = {self.probe}: give a fraction in (0, 1].")
        if self.consolidate < 0:
            raise MarbleError(f"consolidate = {self.consolidate}: give a number of steps ≥ 0.")
        if self.consolidate and self.total_steps is None:
            raise MarbleError("consolidate needs total_steps, to know when the last steps begin.")

    def consolidating(self, step: int) -> bool:
        if self.total_steps is None or self.consolidate == 0:
            return False
        return step >= self.total_steps - self.consolidate

    def is_refresh(self, step: int) -> bool:
        return step % self.n == 0 and not self.consolidating(step)

    def probe_count(self, micro_batches: int) -> int:
        """How many of a refresh step's micro-batches enter the solve: at least one."""
        return max(1, math.ceil(self.probe * micro_batches - 1e-9))
