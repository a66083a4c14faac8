"""Rewards that cancel out: one rises as the other falls, so that neither can judge the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from marble.balance import StepReport
from marble.harmonise import opposed_pairs

IN_A_ROW = 3
"""Measurements after which a pair is believed: in one, of few pictures, two rewards may be opposed
by chance."""


class Told(NamedTuple):
    """A pair of rewards, told once, and the words for the user."""

    pair: tuple[int, int]
    words: str


class Opposed:
    """Follows the cosines between the rewards' gradients, wherever a step has measured them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._seen: dict[str, int] = {}

    def look(self, report: StepReport) -> list[Told]:
        """The pairs that have been opposed so often, with this step, that they are to be told."""
        cos = report.cos_KK
        if cos is None:
            return []
        pairs = {"|".join(self.names[i] for i in pair): pair for pair in opposed_pairs(cos)}
        self._seen = {key: self._seen.get(key, 0) + 1 for key in pairs}
        return [
            Told(pair, self._words(key, float(cos[pair]), report.alpha_raw_K[list(pair)].sum()))
            for key, pair in pairs.items()
            if self._seen[key] == IN_A_ROW
        ]

    def _words(self, key: str, cos: float, weight: float) -> str:
        became = f"they have {weight:.0%} of the weight" if weight else "both are left out"
        return (
            f"{' and '.join(key.split('|'))} oppose each other (cosine of their gradients "
            f"{cos:+.2f}): {became}. Drop one of the two, or make one score of both."
        )

    def state_dict(self) -> dict[str, int]:
        return dict(self._seen)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._seen = dict(state)
