"""Products of gradients with all that is known about their batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from marble.geometry import signal as sig
from marble.geometry.products import Metrics
from marble.geometry.signal import Array

RESOLVED = 2.0
"""A reward's signal is told from noise if its norm² is so many standard errors above 0."""


@dataclass(frozen=True)
class Measured:
    """R rows are K rewards, their weighted sum, and what is outside the balance.

    outside: 1 where a step adds the outside row to its direction, else 0.
    """

    names: list[str]
    metrics: Metrics
    valid_BR: Array
    active_BK: Array
    outside: float = 0.0

    @property
    def k(self) -> int:
        return len(self.names)

    @property
    def batches(self) -> int:
        return len(self.valid_BR)

    @property
    def spaces(self) -> dict[str, Array]:
        """Products by the name of their metric."""
        adam = self.metrics.adam
        return {"plain": self.metrics.plain} | ({} if adam is None else {"adam": adam})

    @cached_property
    def resolved_K(self) -> Array:
        """The rewards whose true gradient can be told from noise."""

        def square(index: Array) -> Array:
            part = sig.subset(self.metrics.plain, index)
            return np.diagonal(sig.across(part, self.valid_BR[index]))[: self.k]

        return square(np.arange(self.batches)) > RESOLVED * sig.jackknife(square, self.batches)

    def one_batch_norms(self, index: Array) -> Array:
        """Lengths of the rewards' gradients on one batch, signal and noise (root mean square)."""
        part = sig.subset(self.metrics.plain, index)
        return np.sqrt(np.diagonal(sig.within(part, self.valid_BR[index])))[: self.k]

    def true_norms(self, index: Array | None = None) -> Array:
        """Lengths of the true gradients, NaN where they are lost in noise."""
        at = np.arange(self.batches) if index is None else index
        signal = sig.across(sig.subset(self.metrics.plain, at), self.valid_BR[at])
        return np.where(self.resolved_K, sig.signal_norms(signal)[: self.k], np.nan)
