"""One optimiser step: which backward each micro-batch takes, and the sum of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from marble.balance.batch import Batch
from marble.harmonise import Solution
from marble.objectives import mix

if TYPE_CHECKING:
    from marble.balance.balancer import Balancer


@dataclass
class StepReport:
    """What a finished step has to say: coefficients and, where they were measured, the geometry."""

    coefficients_K: np.ndarray
    alpha_K: np.ndarray
    alpha_raw_K: np.ndarray
    norms_K: np.ndarray | None = None
    cos_KK: np.ndarray | None = None
    harmony: dict[str, float] | None = None
    harmony_heldout: dict[str, float] | None = None
    harmony_sum: dict[str, float] | None = None
    gap: float | None = None
    loss: float = float("nan")
    kl: float = float("nan")
    old_deviation: float = float("nan")
    refreshed: bool = False
    bad_samples: list[int] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def finite(self) -> bool:
        return not self.bad_samples and bool(np.isfinite(self.loss))


class Plan:
    """Made by `Balancer.begin_step`. A process calls `backward` for its micro-batches, then `finish`.

    On ordinary steps a micro-batch takes one backward with the cached coefficients. On refresh
    steps the first part of them (the probe, by default all) is recorded, two backwards each; then
    the coefficients are solved and the rest follows with the fresh ones. The sum is exact.
    """

    def __init__(
        self,
        balancer: Balancer,
        batch: Batch,
        step: int,
        micro_batches: int,
        pairs: int,
        recorded: int,
    ) -> None:
        self._b, self.batch, self.step = balancer, batch, step
        self._micro_batches, self._pairs, self._recorded = micro_batches, pairs, recorded
        self._seen = 0
        self._solution: Solution | None = None
        self.report: StepReport | None = None
        valid = batch.adv.valid_KN
        present = ~batch.merged_N.isnan()
        self._r_RN = torch.cat([batch.adv.r_KN, batch.merged_r_N[None]]).float()
        self._valid_RN = torch.cat([valid, present[None]])
        self._count_R = self._valid_RN.sum(1).clamp_min(1) * pairs
        self._total = max(1, int(present.sum())) * pairs
        self._rho: tuple[Tensor, Tensor] | None = None
        self._losses_R = torch.zeros(len(self._r_RN), dtype=torch.float64)
        self._outside = torch.zeros(2, dtype=torch.float64)  # KL, squared distance to v_old
        self._bad: list[int] = []
        self.active_K = balancer.active(batch, step)
        if recorded == 0:
            self._settle(balancer.ordinary(step, self.active_K, batch))

    @property
    def records(self) -> bool:
        """Whether the next micro-batch's forward must run inside `recording`."""
        return self._seen < self._recorded

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Wrap the forward of v_θ in it; does nothing where the micro-batch is not recorded."""
        with self._b.jacobian.recording() if self.records else nullcontext():
            yield

    def backward(
        self,
        v: Tensor,
        v_old: Tensor,
        x_t: Tensor,
        x_0: Tensor,
        t_B: Tensor,
        index: Tensor,
        *,
        noise: Tensor | None = None,
        v_ref: Tensor | None = None,
        kl: float = 0.0,
    ) -> None:
        """Adds a micro-batch; `index` are its samples' positions in the step's batch.

        `kl` weighs mean‖v − v_ref‖² of this micro-batch (over the step's pairs), outside the balance.
        """
        objective, scale = self._b.objective, self._b.scale
        P, N = objective.cotangents(v, v_old, x_t, x_0, t_B, noise)
        with torch.no_grad():
            finite = self._watch(v, v_old, x_t, x_0, t_B, index, noise).to(v.device)
            if not bool(finite.all()):
                # The step will be skipped; its sums must stay whole until all processes agree.
                keep = finite.view(-1, *[1] * (v.dim() - 1))
                P, N = torch.where(keep, P, 0.0), torch.where(keep, N, 0.0)
            extra = None
            if v_ref is not None and kl > 0:
                difference = (v.float() - v_ref.float()).to(P.dtype)
                extra = difference * (2 * kl / (difference[0].numel() * self._total))
                self._outside[0] += (
                    difference.square().flatten(1).mean(1).sum().double().cpu() / self._total
                )
        if self.records:
            self._record(v, P, N, index, extra)
        else:
            rho_plus, rho_minus = self._rho_at(index, v)
            cotangent = rho_plus * P + rho_minus * N
            if extra is not None:
                cotangent = cotangent + extra
            torch.autograd.backward(v, (cotangent * scale).to(v.dtype))
        self._seen += 1
        if self._solution is None and self._seen == self._recorded < self._micro_batches:
            self._solve()

    def finish(self) -> StepReport:
        """Sums over processes and leaves the step's gradient in `.grad`."""
        b = self._b
        if self._recorded and self._solution is None:
            self._solve()
        assert self._solution is not None
        parameters = b.parameters
        if dist.is_available() and dist.is_initialized():
            for p in parameters:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.all_reduce(p.grad)
            for tensor in (self._losses_R, self._outside):
                _all_reduce_cpu(tensor, parameters[0].device)
        if self._recorded:
            b.jacobian.write_grad(torch.as_tensor(self._update_row()))
        if b.scale != 1:
            torch._foreach_div_([p.grad for p in parameters if p.grad is not None], b.scale)
        report = self._report()
        self.report = report
        return report

    # -- inside -----------------------------------------------------------------------------------

    def _record(self, v: Tensor, P: Tensor, N: Tensor, index: Tensor, extra: Tensor | None) -> None:
        b, at = self._b, index.to(self._r_RN.device)
        weight = self._valid_RN[:, at].float() / self._count_R[:, None].float()
        shared = None
        if b.target == "reward":
            shared = torch.full((len(v),), 1 / self._total, device=v.device)
        b.jacobian.backward(
            v,
            P * b.scale,
            N * b.scale,
            self._r_RN[:, at],
            weight,
            shared_B=shared,
            extra=None if extra is None else extra * b.scale,
            slot=self._seen % b.jacobian.slots,
        )

    def _rho_at(self, index: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        assert self._rho is not None
        shape = (-1, *[1] * (v.dim() - 1))
        at = index.to(self._rho[0].device)
        plus, minus = (side[at].to(v.device, torch.float32).view(shape) for side in self._rho)
        return plus, minus

    def _settle(self, solution: Solution) -> None:
        """Fixes the coefficients and, from them, the weights of the single backward."""
        self._solution = solution
        r, valid, count = self._r_RN, self._valid_RN, self._count_R
        if self._b.merged:
            plus, minus = mix(torch.ones(1), r[-1:], valid[-1:], count[-1:])
        else:
            plus, minus = mix(
                torch.as_tensor(solution.coefficients_K).float(),
                r[:-1],
                valid[:-1],
                count[:-1],
                target=self._b.target,
                total=self._total,
            )
            if self._b.target == "reward":
                # Samples that no reward applies to take no part, the common pull included.
                plus, minus = plus * valid[-1], minus * valid[-1]
        self._rho = (plus, minus)

    def _solve(self) -> None:
        self._b.jacobian.reduce()
        self._settle(self._b.solve(self))

    def _update_row(self) -> np.ndarray:
        """Coefficients of the Jacobian's rows: K rewards and their sum."""
        assert self._solution is not None
        b = self._b
        return b.direction(self._solution.coefficients_K)

    def _watch(
        self,
        v: Tensor,
        v_old: Tensor,
        x_t: Tensor,
        x_0: Tensor,
        t_B: Tensor,
        index: Tensor,
        noise: Tensor | None,
    ) -> Tensor:
        """Loss per reward and the distance to v_old; remembers samples whose loss is not finite."""
        plus, minus = self._b.objective.sides(v.detach(), v_old, x_t, x_0, t_B, noise)
        deviation = (v.detach().float() - v_old.float()).square().flatten(1).mean(1)
        plus_cpu, minus_cpu, deviation_cpu = (
            side.double().cpu() for side in (plus, minus, deviation)
        )
        at = index.cpu()
        finite = plus_cpu.isfinite() & minus_cpu.isfinite()
        self._bad += at[~finite].tolist()
        r = torch.where(self._valid_RN[:, at], self._r_RN[:, at], 0.0).double()
        loss = r * plus_cpu + (1 - r) * minus_cpu
        weight = self._valid_RN[:, at] / self._count_R[:, None]
        self._losses_R += (torch.where(self._valid_RN[:, at], loss, 0.0) * weight).sum(1)
        self._outside[1] += deviation_cpu.sum() / self._total
        return finite

    def _report(self) -> StepReport:
        b, solution = self._b, self._solution
        assert solution is not None
        rows = b.direction(solution.coefficients_K)
        return StepReport(
            coefficients_K=solution.coefficients_K,
            alpha_K=solution.alpha_K,
            alpha_raw_K=solution.alpha_raw_K,
            norms_K=solution.norms_K if self._recorded else None,
            cos_KK=solution.cos_KK,
            harmony=solution.harmony,
            harmony_heldout=solution.harmony_heldout,
            harmony_sum=b.sum_harmony if self._recorded else None,
            gap=solution.gap,
            loss=float(rows @ self._losses_R.numpy()),
            kl=float(self._outside[0]),
            old_deviation=float(self._outside[1]),
            refreshed=solution.refreshed,
            bad_samples=sorted(set(self._bad)),
            notes=solution.notes,
        )


def _all_reduce_cpu(tensor: Tensor, device: torch.device) -> None:
    """Sums a CPU tensor over processes through the device the backend can use."""
    moved = tensor.to(device)
    dist.all_reduce(moved)
    tensor.copy_(moved)
