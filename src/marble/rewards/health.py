"""Watches a reward while training: constant values, values out of range, a sudden shift."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from marble.errors import RewardError


class HealthWatch:
    """Feed it every batch's valid scores; it answers with what looks wrong, once per episode.

    - *constant*: the last ``constant_after`` values are all the same;
    - *range*: a value outside the reward's declared range;
    - *shift*: a batch mean further than ``shift_sigmas`` standard deviations from those of the
      last ``memory`` batches (the deviation counts at least 2 % of the values' own spread, so that
      a very steady reward does not cry wolf).
    """

    def __init__(
        self,
        name: str,
        range: tuple[float, float],
        *,
        constant_after: int = 64,
        memory: int = 20,
        shift_sigmas: float = 8.0,
    ) -> None:
        self.name, self.range = name, range
        self.constant_after, self.shift_sigmas = constant_after, shift_sigmas
        self.means: deque[float] = deque(maxlen=memory)
        self.spreads: deque[float] = deque(maxlen=memory)
        self.same_value, self.same_count = float("nan"), 0
        self.reported: set[str] = set()

    def feed(self, scores: np.ndarray) -> list[str]:
        """Warnings about these scores (finite ones only)."""
        if not len(scores):
            return []
        found = {
            "constant": self._constant(scores),
            "range": self._out_of_range(scores),
            "shift": self._shifted(scores),
        }
        self.means.append(float(scores.mean()))
        self.spreads.append(float(scores.std()))
        fresh = [text for kind, text in found.items() if text and kind not in self.reported]
        self.reported = {kind for kind, text in found.items() if text}
        return [f"reward {self.name}: {text}" for text in fresh]

    def _constant(self, scores: np.ndarray) -> str | None:
        if np.all(scores == scores[0]):
            carried = self.same_count if scores[0] == self.same_value else 0
            self.same_value, self.same_count = float(scores[0]), carried + len(scores)
        else:
            self.same_value, self.same_count = float("nan"), 0
        if self.same_count < self.constant_after:
            return None
        return (
            f"the last {self.same_count} values were all {self.same_value:.4g}; it teaches nothing"
        )

    def _out_of_range(self, scores: np.ndarray) -> str | None:
        low, high = self.range
        slack = 1e-6 * max(
            1.0, abs(low) if np.isfinite(low) else 0, abs(high) if np.isfinite(high) else 0
        )
        outside = (scores < low - slack) | (scores > high + slack)
        if not outside.any():
            return None
        value = float(scores[outside][0])
        return f"{int(outside.sum())} values outside [{low:g}, {high:g}], e.g. {value:.4g}"

    def _shifted(self, scores: np.ndarray) -> str | None:
        if len(self.means) < (self.means.maxlen or 0) // 2:
            return None
        usual = float(np.mean(self.means))
        spread = max(float(np.std(self.means)), 0.02 * float(np.mean(self.spreads)), 1e-9)
        mean = float(scores.mean())
        if abs(mean - usual) <= self.shift_sigmas * spread:
            return None
        return f"the mean jumped to {mean:.4g} from {usual:.4g} (usual spread {spread:.2g})"

    def state_dict(self) -> dict[str, Any]:
        """JSON-friendly state, for exact resume."""
        return {
            "means": list(self.means),
            "spreads": list(self.spreads),
            "same_value": None if np.isnan(self.same_value) else self.same_value,
            "same_count": self.same_count,
            "reported": sorted(self.reported),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means.clear()
        self.means.extend(state["means"])
        self.spreads.clear()
        self.spreads.extend(state["spreads"])
        value = state["same_value"]
        self.same_value = float("nan") if value is None else value
        self.same_count = state["same_count"]
        self.reported = set(state["reported"])


class Silence:
    """Counts epochs in which a reward scored none of the pictures it was meant to score."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}

    def feed(self, name: str, scored: int, meant: int, stop_after: int) -> str | None:
        """One epoch's counts, of all processes. What to tell; a `RewardError` once it is enough.

        ``meant``: pictures of prompts that the reward says it applies to. ``stop_after``: epochs
        in a row after which a reward without a score is an error; 0: never.
        """
        if scored:
            self.epochs.pop(name, None)
        if scored or not meant:
            return None
        count = self.epochs[name] = self.epochs.get(name, 0) + 1
        told = f"reward {name} gave no score for any of the {meant} pictures it is meant for"
        if stop_after and count >= stop_after:
            raise RewardError(
                f"{told}, {count} epochs in a row: it trains nothing. Mend it, restrict it to its "
                "prompts with `sources`, or set rewards.silent_epochs=0 to go on regardless"
            )
        after = f"; the run stops after {stop_after} such epochs in a row" if stop_after else ""
        return f"{told} (epochs in a row: {count}): it trains nothing{after}"

    def state_dict(self) -> dict[str, int]:
        return dict(self.epochs)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = dict(state)
