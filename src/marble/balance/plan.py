"""One optimiser step: which backward each micro-batch takes, and the sum of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from marble.balance.gradients import Gradients, sum_grads
from marble.balance.report import Decide, Decision, StepReport
from marble.balance.rows import StepRows
from marble.balance.tally import Tally
from marble.errors import MarbleError
from marble.objectives import Objective, Point, terms
from marble.objectives.base import column


class Plan:
    """Made by `Balancer.begin_step`. Every process calls `backward` for its micro-batches, then
    `finish` once.

    On ordinary steps a micro-batch takes one backward with the cached coefficients; on refresh
    steps the first part of them (the probe, by default all) is recorded, two backwards each; then
    the coefficients are solved and the rest follows with the fresh ones. The sum is exact.
    """

    def __init__(
        self,
        rows: StepRows,
        objective: Objective,
        gradients: Gradients,
        decide: Decide,
        *,
        pairs: int,
        recorded: int,
        target: str,
        scale: float,
    ) -> None:
        self._rows, self._objective, self._gradients = rows, objective, gradients
        self._decide, self._target, self._scale = decide, target, scale
        self._size = rows.a_RN.shape[1]
        self._pairs, self._recorded, self._seen = pairs, recorded, 0
        self._tally = Tally(rows.a_RN, rows.b_RN, rows.share())
        self._decision: Decision | None = None
        self._rho: tuple[Tensor, Tensor] | None = None
        self._notes: tuple[str, ...] = ()
        gradients.begin(self._size)
        if recorded == 0:
            self._settle(decide(False))

    @property
    def recorded(self) -> int:
        """How many micro-batches are recorded: the first ones."""
        return self._recorded

    def record_first(self, count: int) -> None:
        """The micro-batches to be recorded come in `count` parts, each given to `backward`."""
        self._recorded = count

    @property
    def records(self) -> bool:
        """Whether the next micro-batch's forward must run inside `recording`."""
        return self._seen < self._recorded

    @contextmanager
    def recording(self, batch: int | None = None) -> Iterator[None]:
        """Wrap every forward of v_θ in it; it records where the micro-batch needs it.

        A compiled model needs ``batch``, the number of samples of the forward.
        """
        gradients = self._gradients
        with gradients.jacobian.recording(batch) if self.records else gradients.no_sync():
            yield

    def backward(self, v: Tensor, point: Point, index: Tensor) -> None:
        """Adds a micro-batch: v_θ at `point`; `index` are its samples' positions in the batch.

        `point.kl` weighs the objective's penalty over the step's pairs, outside the balance.
        """
        if self._decision is None and not self.records:
            self._solve()
        at = self._positions(index, v)
        with torch.no_grad():
            P, N = self._objective.cotangents(v, point)
            extra = None
            if point.v_ref is not None and point.kl > 0:
                weight = point.kl / (self._size * self._pairs)
                value_B, extra = self._objective.penalty(v.detach(), point, weight)
                self._tally.add_kl(value_B)
            # Sides that are not finite are left out here, and with them the whole step in the end;
            # until then all processes need sums that stay in one piece.
            P = self._scaled(P, v)
            finite_B = _finite(P)
            if N is not None:
                N = self._scaled(N, v)
                finite_B &= _finite(N)
            if extra is not None:
                extra = self._scaled(extra, v)
                finite_B &= _finite(extra)
            self._watch(v.detach(), point, at, finite_B)
            keep = column(finite_B, v)
            P = torch.where(keep, P, 0.0)
            N = None if N is None else torch.where(keep, N, 0.0)
            extra = None if extra is None else torch.where(keep, extra, 0.0)
        if self.records:
            self._record(v, P, N, at, extra)
        else:
            assert self._rho is not None
            plus, minus = (column(_sent(side[at], P.device, P.dtype), v) for side in self._rho)
            cotangent = plus * P if N is None else plus * P + minus * N
            cotangent = cotangent if extra is None else cotangent + extra
            torch.autograd.backward(v, cotangent.to(v.dtype))
        self._seen += 1

    def finish(self) -> StepReport:
        """Sums over processes; the gradient is in `.grad` then, or None there if not finite."""
        gradients = self._gradients
        if self._decision is None:
            self._solve()
        assert self._decision is not None
        parameters = gradients.parameters
        sum_grads(parameters)
        self._tally.reduce(parameters[0].device)
        self._tally.check(self._pairs)
        for p in parameters:
            if p.grad is not None and self._scale != 1:
                p.grad.div_(self._scale)
        bad = self._tally.bad_samples
        if self._recorded and not bad and not self._notes:
            gradients.write(self._decision.direction_R)
        report = self._report(self._decision, bad)
        if not report.finite:
            for parameter in parameters:
                parameter.grad = None
        return report

    # -- inside -----------------------------------------------------------------------------------

    def _positions(self, index: Tensor, v: Tensor) -> Tensor:
        at = torch.as_tensor(index).cpu().long()
        if at.shape != v.shape[:1] or bool(((at < 0) | (at >= self._size)).any()):
            raise MarbleError(
                f"backward: index must give the position in the step's batch (0 to "
                f"{self._size - 1}) of each of the {len(v)} samples, got {at.tolist()}."
            )
        return at

    def _scaled(self, side: Tensor, v: Tensor) -> Tensor:
        """Times the loss scale, and infinite where the model's own precision would overflow."""
        side = side * self._scale
        return side.to(v.dtype).to(side.dtype) if v.dtype == torch.float16 else side

    def _record(
        self, v: Tensor, P: Tensor, N: Tensor | None, at: Tensor, extra: Tensor | None
    ) -> None:
        rows, gradients = self._rows, self._gradients
        share = rows.share(at)
        # Samples that no reward applies to take no part, the common pull included.
        common = _sent(share[-1], P.device, P.dtype) if self._target == "reward" else None
        found, outside = terms(
            P,
            N,
            _sent(rows.a_RN[:, at], v.device),
            _sent(rows.b_RN[:, at], v.device),
            _sent(share, v.device, gradients.jacobian.dtype),
            common_B=common,
            extra=extra,
        )
        gradients.add(v, found, outside, share, at)

    def _settle(self, decision: Decision) -> None:
        """Fixes the coefficients and, from them, the weights of the single backward."""
        if self._target == "reward":
            decision = self._rows.sized(decision)
        self._decision = decision
        self._rho = self._rows.mixed(decision, self._target)

    def _solve(self) -> None:
        """Unless something is not finite: then the step is lost, but not the balance's state."""
        gradients = self._gradients
        gradients.reduce(self._scale)
        lost = gradients.not_finite()
        if lost:
            self._notes = (f"The gradient of {', '.join(lost)} is not finite: no step.",)
        bad = self._tally.any_bad(gradients.parameters[0].device)
        self._settle(self._decide(not (bad or lost)))

    def _watch(self, v: Tensor, point: Point, at: Tensor, finite_B: Tensor) -> None:
        """Adds losses and distances to the tally, and the samples whose loss is not finite."""
        plus, minus = self._objective.sides(v, point)
        minus = torch.zeros_like(plus) if minus is None else minus
        deviation = torch.full_like(plus, torch.nan)
        if point.v_old is not None:
            deviation = (v.float() - point.v_old.float()).square().flatten(1).mean(1).to(plus)
        finite_B &= plus.isfinite() & minus.isfinite()
        self._tally.add(at, plus, minus, deviation, finite_B)

    def _report(self, decision: Decision, bad: list[int]) -> StepReport:
        solution = decision.solution
        notes = solution.notes + self._notes
        if bad:
            notes += (f"The loss of {len(bad)} samples is not finite: no step.",)
        loss = float(decision.direction_R @ self._tally.losses_R.numpy())
        grads = [p.grad for p in self._gradients.parameters if p.grad is not None]
        overflow = not bool(torch.nn.utils.get_total_norm(grads, torch.inf).isfinite())
        if overflow and not bad and not self._notes:
            notes += ("The gradient is not finite: no step.",)
        measured = solution.harmony is not None
        return StepReport(
            coefficients_K=solution.coefficients_K,
            alpha_K=solution.alpha_K,
            alpha_raw_K=solution.alpha_raw_K,
            norms_K=solution.norms_K if measured else None,
            cos_KK=solution.cos_KK,
            harmony=solution.harmony,
            harmony_heldout=solution.harmony_heldout,
            harmony_sum=decision.harmony_sum if measured else None,
            gap=solution.gap,
            loss=loss,
            kl=self._tally.kl,
            old_deviation=self._tally.deviation,
            refreshed=solution.refreshed,
            finite=not (bad or self._notes or overflow or not np.isfinite(loss)),
            bad_samples=bad,
            notes=notes,
        )


def _sent(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """On the device, without waiting for what it is doing."""
    return values.to(device, dtype or values.dtype, non_blocking=True)


def _finite(side: Tensor) -> Tensor:
    return side.flatten(1).isfinite().all(1)
