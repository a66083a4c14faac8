"""A moving average of the K gradients themselves (MoCo-style), against noise in one step's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marble.errors import CheckpointError, MarbleError
from marble.jacobian.store import Rows


class GradientEma:
    """``y_k ← ρ_k y_k + (1 − ρ_k) g_k`` with ``ρ_k = min(ρ, n_k/(n_k + 1))``.

    n_k counts the updates of reward k, so that the first ones are a plain mean and the start
    at zero leaves no bias. Rewards that are not active keep their average.
    """

    def __init__(self, k: int, total: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = Rows(1, k, total, dtype, device)
        self.seen_K = torch.zeros(k, dtype=torch.int64)

    def update(self, step: Rows, rho: float, active_K: Tensor | None) -> None:
        if not 0 <= rho < 1:
            raise MarbleError(f"The gradient EMA needs 0 ≤ ρ < 1, got {rho}.")
        active = torch.ones_like(self.seen_K) if active_K is None else active_K.cpu().bool()
        for k in active.nonzero().flatten().tolist():
            seen = int(self.seen_K[k])
            keep = min(rho, seen / (seen + 1))
            row = self.rows.data[0, k].mul_(keep)
            for slot in step.data:
                row.add_(slot[k], alpha=1 - keep)
            self.seen_K[k] += 1

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows.data[0].clone(), "seen": self.seen_K.clone()}

    def load_state_dict(self, state: Mapping[str, Any], names: Sequence[str]) -> None:
        rows = state["rows"]
        if rows.shape != self.rows.data.shape[1:]:
            raise CheckpointError(
                f"The stored gradient average has shape {tuple(rows.shape)}, this model and its "
                f"{len(names)} rewards need {tuple(self.rows.data.shape[1:])}; resume with the "
                "same rewards and LoRA rank, or start without the old balance state."
            )
        self.rows.data[0].copy_(rows)
        self.seen_K.copy_(state["seen"])
