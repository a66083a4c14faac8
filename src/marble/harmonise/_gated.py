"""Equal weights among the rewards that take part in a step."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from marble.options import Decay, Section

from ._linalg import Array
from ._rule import Gate
from ._uniform import Uniform


class Single(Uniform):
    """Plain training on one reward."""

    name = "single"
    chosen_by = "reward"
    saved_as = Uniform.name


class Sequential(Uniform):
    """Stages with rewards of their own."""

    name = "sequential"
    chosen_by = "stages"
    saved_as = Uniform.name


class Dropout(Uniform):
    """Every reward sits some steps out, at random."""

    name = "dropout"
    saved_as = Uniform.name
    shorthand = "rate"

    class Options(Section):
        rate: Decay = Field(default=0.5, description="Chance that a reward sits out a step.")

    def gate(self, k: int, seed: int) -> Gate:
        """When all would sit out, one of them stays."""
        rate = self.options.rate

        def gate(step: int) -> Array:
            rng = np.random.default_rng([seed, step, 0xD0])
            kept = rng.random(k) >= rate
            if not kept.any():
                kept[rng.integers(k)] = True
            return kept

        return gate
