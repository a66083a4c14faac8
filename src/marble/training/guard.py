"""What stands between a gradient and the weights: finiteness, clipping, fp16's loss scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from marble.balance import StepReport
from marble.data import Sample
from marble.errors import MarbleError

MAX_IN_A_ROW = 10
FP16_START, FP16_GROWTH_STEPS = 2.0**12, 200


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

    def accepts(
        self,
        report: StepReport,
        parameters: list[nn.Parameter],
        samples: list[Sample],
        clip: float | None,
    ) -> bool:
        """Clips the gradient and says whether to use it. All processes answer alike."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self.norm = float(norm)
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
            raise MarbleError(
                f"{self.in_a_row} steps in a row had no finite gradient ({self.message}). "
                "Resume from the last checkpoint with a lower optim.lr."
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("scale", "skipped", "in_a_row", "good")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            setattr(self, key, value)


def _describe(report: StepReport, samples: list[Sample]) -> str:
    if report.bad_samples:
        named = [s.prompt.text for s in samples][:3]
        return f"loss not finite for {len(report.bad_samples)} samples, prompts such as {named!r}"
    return "the gradient overflowed"
