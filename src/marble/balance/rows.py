"""What a step weighs: every reward's two weights of every sample and, as a last row, the sum's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marble.balance.batch import Batch
from marble.balance.report import Decision
from marble.objectives import Objective, mix


@dataclass(frozen=True)
class StepRows:
    """R = K + 1 rows over the step's N samples, all processes'.

    a_RN, b_RN: the objective's weights of L⁺ and L⁻. valid_RN: the sample takes part in the row.
    count_R: its (sample, timestep) pairs, at least 1. unit: how far an advantage of 1 moves a.
    prefer_KN: how much a reward counts for a sample, besides; None: 1.
    """

    a_RN: Tensor
    b_RN: Tensor
    valid_RN: Tensor
    count_R: Tensor
    unit: float
    prefer_KN: Tensor | None = None

    @classmethod
    def of(cls, batch: Batch, objective: Objective, pairs: int) -> StepRows:
        adv_RN = torch.cat([batch.adv.adv_KN, batch.merged_N[None]])
        a, b = objective.weights(adv_RN)
        valid = ~a.isnan()
        unit = float(objective.weights(adv_RN.new_ones(1, 2))[0][0, 0]) - 0.5
        count = valid.sum(1).clamp_min(1) * pairs
        return cls(a, b, valid, count, unit, batch.prefer_KN)

    def share(self, at: Tensor | slice = slice(None)) -> Tensor:
        """m/n of some samples, [R, B], times their preference: the weight of one of their pairs
        in the row's mean."""
        share = self.valid_RN[:, at] / self.count_R[:, None].double()
        if self.prefer_KN is not None:
            share[:-1] *= self.prefer_KN[:, at]
        return share

    def sized(self, decision: Decision) -> Decision:
        """The same direction, with the combined advantages of the samples at a root mean square
        of 1, which is what those of a single reward have."""
        c = torch.as_tensor(decision.direction_R)[:-1]
        valid, total = self.valid_RN[:-1], int(self.count_R[-1])
        plus, minus = mix(
            c, self.a_RN[:-1], self.b_RN[:-1], valid, self.count_R[:-1],
            target="reward", total=total, prefer_KN=self.prefer_KN,
        )  # fmt: skip
        combined = (plus - minus)[self.valid_RN[-1]] * (total / (2 * self.unit))
        size = float(combined.square().mean().sqrt()) if len(combined) else 0.0
        if decision.merged or size <= 0:
            return decision
        solution = decision.solution
        return replace(
            decision,
            direction_R=decision.direction_R / size,
            solution=replace(solution, coefficients_K=solution.coefficients_K / size),
        )

    def mixed(self, decision: Decision, target: str) -> tuple[Tensor, Tensor]:
        """(ρ⁺, ρ⁻) of every sample for the single backward along the direction decided on.

        Samples that no reward applies to take no part, a common pull included.
        """
        a, b, valid = self.a_RN, self.b_RN, self.valid_RN
        c = torch.as_tensor(decision.direction_R)
        if decision.merged:
            return mix(c[-1:], a[-1:], b[-1:], valid[-1:], self.count_R[-1:])
        plus, minus = mix(
            c[:-1], a[:-1], b[:-1], valid[:-1], self.count_R[:-1],
            target=target, total=int(self.count_R[-1]), prefer_KN=self.prefer_KN,
        )  # fmt: skip
        return plus * valid[-1], minus * valid[-1]
