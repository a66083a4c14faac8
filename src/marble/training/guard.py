"""What stands between a gradient and the weights: finiteness, clipping, spikes, loss scale."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from marble.balance import StepReport
from marble.data import Sample
from marble.errors import MarbleError

MAX_IN_A_ROW = 10
FP16_START, FP16_GROWTH_STEPS = 2.0**12, 200
SPIKE_FACTOR, SPIKE_STEP, SPIKE_MEMORY, SPIKE_AFTER = 10.0, 3.0, 50, 10


class Diverged(MarbleError):
    """Too many steps in a row had to be skipped."""


class Guard:
    """Skips a step whose loss or gradient is not finite; the state stays as it was."""

    def __init__(self, fp16: bool) -> None:
        self.fp16 = fp16
        self.scale = FP16_START if fp16 else 1.0
        self.skipped = 0
        self.in_a_row = 0
        self.good = 0
        self.norm = float("nan")
        self.message: str | None = None
        """Why the last step was skipped, for the log; None when it was taken."""
        self._usual = {"gradient norm": Usual(), "KL": Usual()}

    def accepts(
        self,
        report: StepReport,
        parameters: Sequence[nn.Parameter],
        samples: Sequence[Sample],
        clip: float | None,
    ) -> bool:
        """Clips the gradient and says whether to use it. All processes answer alike.

        `samples`: those of the step, of all processes, in the order of the report's positions.
        """
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self.norm = float(norm) if report.finite else float("nan")
        self.message = None
        if report.finite and torch.isfinite(norm):
            if clip is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
            self.in_a_row = 0
            self.good += 1
            if self.fp16 and self.good % FP16_GROWTH_STEPS == 0:
                self.scale = min(self.scale * 2, 2.0**16)
            return True
        self.skipped += 1
        self.in_a_row += 1
        self.good = 0
        if self.fp16:
            self.scale = max(1.0, self.scale / 2)
        self.message = _describe(report, samples)
        if self.in_a_row >= MAX_IN_A_ROW:
            raise Diverged(
                f"{self.in_a_row} steps in a row had no finite gradient ({self.message}). "
                "Resume from the last good checkpoint with a lower optim.lr"
            )
        return False

    def spikes(self, report: StepReport) -> list[str]:
        """What this step's gradient norm and KL say when held against those of recent steps."""
        values = {"gradient norm": self.norm, "KL": report.kl}
        found = (self._usual[name].look(value) for name, value in values.items())
        return [f"{name} {text}" for name, text in zip(values, found) if text]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            k: getattr(self, k) for k in ("scale", "skipped", "in_a_row", "good")
        }
        usual = {name: list(u.values) for name, u in self._usual.items()}
        return {**state, "usual": usual}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key in ("scale", "skipped", "in_a_row", "good"):
            setattr(self, key, state[key])
        for name, values in state["usual"].items():
            self._usual[name] = Usual(values)


class Usual:
    """The recent values of a positive quantity, to tell a spike from them."""

    def __init__(self, values: Sequence[float] = ()) -> None:
        self.values = deque(values, maxlen=SPIKE_MEMORY)

    def look(self, value: float) -> str | None:
        """Says by how much `value` stands out, and remembers it."""
        if not value < float("inf"):
            return None
        usual = median(self.values) if len(self.values) >= SPIKE_AFTER else float("inf")
        highest = max(self.values, default=0.0)
        self.values.append(value)
        if usual <= 0 or value <= SPIKE_FACTOR * usual or value <= SPIKE_STEP * highest:
            return None  # the KL begins at zero: growing is not jumping
        return f"jumped to {value:.3g}, {value / usual:.0f} times its recent median"


def _describe(report: StepReport, samples: Sequence[Sample]) -> str:
    """The prompts at fault; where it is not the loss, the rewards whose gradient is."""
    if report.bad_samples:
        prompts = dict.fromkeys(samples[i].prompt.text for i in report.bad_samples)
        named = ", ".join(f"'{text}'" for text in list(prompts)[:3])
        return f"loss not finite for {len(report.bad_samples)} samples, prompts such as {named}"
    reasons = [note.removesuffix(": no step.") for note in report.notes if "not finite" in note]
    return "; ".join(reasons) or "the gradient overflowed"
