"""Weights given by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from marble.errors import MarbleError
from marble.options import Section

from ._linalg import Array
from ._rule import FreeRule


class Fixed(FreeRule):
    """α ∝ the given weights, on the raw gradients. Negative or all-zero weights are errors."""

    name = "fixed"

    class Options(Section):
        weights: list[float] = Field(
            default=[],
            description="One per reward; a recipe has them in rewards.NAME.weight.",
        )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        weights = self.options.weights
        if not weights:
            raise MarbleError(f"{self.name} needs weights: one number per reward.")
        given = np.array(weights, dtype=np.float64)
        if (given < 0.0).any():
            raise MarbleError(f"{self.name}: weights {weights!r}; give numbers of at least 0.")
        if given.sum() <= 0.0:
            raise MarbleError(f"{self.name}: the weights are all 0; give at least one above 0.")
        self.given = given / given.sum()

    def current(self, preference: Array) -> Array:
        if len(preference) != len(self.given):
            raise MarbleError(
                f"{self.name}: {len(self.given)} weights for {len(preference)} rewards."
            )
        weighted = self.given * preference
        return np.asarray(weighted / weighted.sum())
