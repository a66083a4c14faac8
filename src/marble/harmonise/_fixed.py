"""Weights given by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marble.errors import MarbleError

from ._linalg import Array
from ._rule import FreeRule


class Fixed(FreeRule):
    """α ∝ the given weights, on the raw gradients. Negative or all-zero weights are errors."""

    name = "fixed"

    def __init__(self, *, weights: Sequence[float] = ()) -> None:
        super().__init__()
        if not len(weights):
            raise MarbleError("fixed needs weights: one number per reward.")
        given = np.array(list(weights), dtype=np.float64)
        if given.ndim != 1 or not np.isfinite(given).all() or (given < 0.0).any():
            raise MarbleError(f"fixed: weights {list(weights)!r}; give numbers of at least 0.")
        if given.sum() <= 0.0:
            raise MarbleError("fixed: the weights are all 0; give at least one above 0.")
        self.given = given / given.sum()

    def current(self, preference: Array) -> Array:
        if len(preference) != len(self.given):
            raise MarbleError(
                f"fixed: {len(self.given)} weights for {len(preference)} rewards; give one each."
            )
        weighted = self.given * preference
        return np.asarray(weighted / weighted.sum())
