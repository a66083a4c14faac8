"""Preferences: every prompt of an epoch is trained under slider weights of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from marble.errors import MarbleError
from marble.options import PositiveInt, Section

from ._linalg import Array
from ._rule import FreeRule

CORNERS, CENTRE = 0.4, 0.2
"""Shares of the prompts that are drawn at a corner of the range and at its centre."""


class Steerable(FreeRule):
    """Adapter weights s_k = K·ω_k are drawn per prompt; reward k counts s_k times there.

    The policy of a prompt is base + shared LoRA + Σ_k s_k·LoRA_k. The mean gradient of reward k, in
    which a picture's advantage counts s_k times, has the coefficient √n_k, n_k the pictures that
    it applies to. In proportion to n_k (a picture's advantages added) a reward on few prompts
    lagged at the default weights; with equal ones all others gained less (docs/steer.md). No solve
    comes on top, since it would undo what a prompt's weights ask for: a reward that stands alone
    gets most of the weight from `marble` at every setting.
    """

    name = "steer"
    observes = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._counts_K: Array | None = None  # of this step, so that there is nothing to save

    def observe(
        self,
        means_K: Array,
        stds_K: Array,
        counts_K: Array | None = None,
        advantages_KN: Array | None = None,
    ) -> None:
        known = None if advantages_KN is None else np.isfinite(advantages_KN).sum(1)
        self._counts_K = known if known is not None and known.any() else None

    def current(self, preference: Array) -> Array:
        counts = np.ones_like(preference) if self._counts_K is None else self._counts_K
        weighted = np.sqrt(counts) * preference
        return np.asarray(weighted / weighted.sum())

    class Options(Section):
        most: Annotated[float, Field(gt=1)] = Field(
            default=2.0, description="Largest weight of a slider; the least is 0, the default 1."
        )
        rank: PositiveInt | None = Field(
            default=None,
            description="Rank of each slider's LoRA; null: a third of model.lora.rank / K, rounded "
            "down. The shared LoRA has the rest.",
        )
        own: Annotated[float, Field(ge=0, le=1)] = Field(
            default=0.05,
            description="How much of a slider's LoRA follows its own reward's gradient alone; the "
            "rest follows the combination, as the shared LoRA does.",
        )

    @classmethod
    def owned(cls, options: Any) -> float:
        return float(options.own)

    def preferences(self, applies_KG: Array, seed: int, groups: Sequence[int]) -> Array:
        """Weights s_KG of an epoch's prompts, each in 0 … `most`, Σ_k s_k = K.

        A pure function of its arguments, so that resuming needs no state. A corner raises a reward
        that applies to the prompt, since any other would teach nothing there, the likelier the
        fewer prompts it applies to; weights in between are K times a draw from the simplex, drawn
        in to the range.
        """
        rarity_K = 1.0 / np.maximum(applies_KG.sum(1), 1)
        drawn = [
            self._preference(applies * rarity_K, np.random.default_rng([seed, group, 0x57EE]))
            for applies, group in zip(applies_KG.T, groups)
        ]
        return np.stack(drawn, axis=1)

    def _preference(self, chance_K: Array, rng: np.random.Generator) -> Array:
        k, kind, most = len(chance_K), rng.random(), self.options.most
        if kind < CORNERS and chance_K.any():
            return corner(k, int(rng.choice(k, p=chance_K / chance_K.sum())), most)
        if kind < CORNERS + CENTRE:
            return np.ones(k)
        return drawn_in(k * rng.dirichlet(np.ones(k)), most)

    def ranks(self, total: int, k: int) -> tuple[int, int]:
        """Ranks of the shared LoRA and of each slider's, together `total`."""
        each = self.options.rank or max(1, total // (3 * k))
        if total - k * each < 1:
            raise MarbleError(
                f"model.lora.rank={total}: {k} sliders of rank {each} and a shared LoRA need at "
                f"least {k * each + 1}"
            )
        return total - k * each, each


def corner(k: int, raised: int, most: float) -> Array:
    """All that the range allows for one reward; the others share what is left of the sum K."""
    top = min(most, float(k))
    weights = np.full(k, (k - top) / max(1, k - 1))
    weights[raised] = top
    return weights


def drawn_in(weights_K: Array, most: float) -> Array:
    """Towards the centre, until no weight is above `most`; their sum stays."""
    excess = float(weights_K.max()) - 1.0
    shrink = min(1.0, (most - 1.0) / excess) if excess > 0 else 1.0
    return np.asarray(1.0 + shrink * (weights_K - 1.0))
