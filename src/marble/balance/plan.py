"""One optimiser step: which backward each micro-batch takes, and the sum of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from marble.balance.batch import Batch
from marble.balance.tally import Tally
from marble.errors import MarbleError
from marble.harmonise import Solution
from marble.objectives import mix

if TYPE_CHECKING:
    from marble.balance.balancer import Balancer


@dataclass
class StepReport:
    """What a finished step has to say: coefficients and, where they were measured, the geometry.

    coefficients_K: c of the step Σ c_k g_k (for merged methods: the rewards' weights).
    loss: Σ c_k ℓ_k, without KL. kl, old_deviation: mean ‖v − v_ref‖² (of the pairs that had a
    v_ref) and mean ‖v − v_old‖². harmony_sum: what the weighted sum's direction would have had.
    finite: False means that `.grad` is None everywhere; skip the step. `bad_samples` are the
    positions in the batch, on any process, whose loss was not finite.
    """

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
    finite: bool = True
    bad_samples: list[int] = field(default_factory=list)
    notes: tuple[str, ...] = ()


class Plan:
    """Made by `Balancer.begin_step`. Every process calls `backward` for its micro-batches, then
    `finish` once.

    On ordinary steps a micro-batch takes one backward with the cached coefficients; on refresh
    steps the first part of them (the probe, by default all) is recorded, two backwards each; then
    the coefficients are solved and the rest follows with the fresh ones. The sum is exact.
    """

    def __init__(
        self, balancer: Balancer, batch: Batch, step: int, pairs: int, recorded: int
    ) -> None:
        self._b, self.batch, self.step = balancer, batch, step
        self._pairs, self._recorded, self._seen, self._dealt = pairs, recorded, 0, 0
        # The rewards and, as a last row, their sum.
        present = ~batch.merged_N.isnan()
        self._r_RN = torch.cat([batch.adv.r_KN, batch.merged_r_N[None]])
        self._valid_RN = torch.cat([batch.adv.valid_KN, present[None]])
        self._count_R = self._valid_RN.sum(1).clamp_min(1) * pairs
        self._tally = Tally(self._r_RN, self._valid_RN, self._count_R)
        self.share_RS = torch.zeros(len(self._r_RN), 2, dtype=torch.float64)
        """Part of each row's pairs that a half of the step holds; of all processes once solved."""
        self._slot_N = torch.full((batch.size,), -1)
        self._rho: tuple[Tensor, Tensor] | None = None
        self._solution: Solution | None = None
        self._notes: tuple[str, ...] = ()
        self.report: StepReport | None = None
        self.active_K = balancer.active(batch, step)
        if recorded == 0:
            self._settle(balancer.ordinary(step, self.active_K))

    @property
    def records(self) -> bool:
        """Whether the next micro-batch's forward must run inside `recording`."""
        return self._seen < self._recorded

    @contextmanager
    def recording(self, batch: int | None = None) -> Iterator[None]:
        """Wrap every forward of v_θ in it; it records where the micro-batch needs it.

        A compiled model needs ``batch``, the number of samples of the forward.
        """
        with self._b.jacobian.recording(batch) if self.records else self._b.no_sync():
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

        `kl` weighs mean‖v − v_ref‖² over the step's pairs, outside the balance.
        """
        if self._solution is None and not self.records:
            self._solve()
        at = self._positions(index, v)
        P, N = self._b.objective.cotangents(v, v_old, x_t, x_0, t_B, noise)
        extra = None
        with torch.no_grad():
            if v_ref is not None and kl > 0:
                difference = v.to(P.dtype) - v_ref.to(P.dtype)
                pairs = self.batch.size * self._pairs
                extra = difference * (2 * kl / (difference[0].numel() * pairs))
                self._tally.add_kl(difference.square().flatten(1).mean(1).double().cpu())
            # Sides that are not finite are left out here, and with them the whole step in the end;
            # until then all processes need sums that stay in one piece.
            P, N = self._scaled(P, v), self._scaled(N, v)
            finite_B = _finite(P) & _finite(N)
            if extra is not None:
                extra = self._scaled(extra, v)
                finite_B &= _finite(extra)
            self._watch(v, v_old, x_t, x_0, t_B, noise, at, finite_B)
            keep = _column(finite_B, v)
            P, N = torch.where(keep, P, 0.0), torch.where(keep, N, 0.0)
            extra = None if extra is None else torch.where(keep, extra, 0.0)
        if self.records:
            self._record(v, P, N, at, extra)
        else:
            assert self._rho is not None
            plus, minus = (_column(side[at].to(P.device, P.dtype), v) for side in self._rho)
            cotangent = plus * P + minus * N
            cotangent = cotangent if extra is None else cotangent + extra
            torch.autograd.backward(v, cotangent.to(v.dtype))
        self._seen += 1

    def finish(self) -> StepReport:
        """Sums over processes; the gradient is in `.grad` then, or None there if not finite."""
        b = self._b
        if self._solution is None:
            self._solve()
        assert self._solution is not None
        _all_reduce_grads(b.parameters)
        self._tally.reduce(b.parameters[0].device)
        self._tally.check(self._pairs)
        for p in b.parameters:
            if p.grad is not None and b.scale != 1:
                p.grad.div_(b.scale)
        bad = self._tally.bad_samples
        if self._recorded and not bad and not self._notes:
            b.jacobian.write_grad(torch.as_tensor(b.direction(self._solution)))
        self.report = self._report(bad)
        if not self.report.finite:
            for parameter in b.parameters:
                parameter.grad = None
        return self.report

    # -- inside -----------------------------------------------------------------------------------

    def _positions(self, index: Tensor, v: Tensor) -> Tensor:
        at = torch.as_tensor(index).cpu().long()
        if at.shape != v.shape[:1] or bool(((at < 0) | (at >= self.batch.size)).any()):
            raise MarbleError(
                f"backward: index must give the position in the step's batch (0 to "
                f"{self.batch.size - 1}) of each of the {len(v)} samples, got {at.tolist()}."
            )
        return at

    def _scaled(self, side: Tensor, v: Tensor) -> Tensor:
        """Times the loss scale, and infinite where the model's own precision would overflow."""
        side = side * self._b.scale
        return side.to(v.dtype).to(side.dtype) if v.dtype == torch.float16 else side

    def _record(self, v: Tensor, P: Tensor, N: Tensor, at: Tensor, extra: Tensor | None) -> None:
        b = self._b
        weight = self._valid_RN[:, at] / self._count_R[:, None].double()
        # Samples that no reward applies to take no part, the common pull included.
        shared = weight[-1] if b.target == "reward" else None
        slot = self._slot(at)
        self.share_RS[:, slot] += weight.sum(1)
        b.jacobian.backward(
            v,
            P,
            N,
            self._r_RN[:, at],
            weight,
            shared_B=shared,
            extra=extra,
            slot=slot,
        )

    def _slot(self, at: Tensor) -> int:
        """The half of the step a micro-batch goes to.

        A sample stays in its half at all its timesteps: halves that share a picture share its
        noise, and would agree with each other more than with a new batch.
        """
        slots = self._b.jacobian.slots
        known = int(self._slot_N[at].max())
        if known < 0:
            known = (self._dealt + self._b.rank) % slots
            self._dealt += 1
        self._slot_N[at] = known
        return known

    def _settle(self, solution: Solution) -> None:
        """Fixes the coefficients and, from them, the weights of the single backward."""
        self._solution = solution
        b, r, valid, count = self._b, self._r_RN, self._valid_RN, self._count_R
        c = torch.as_tensor(b.direction(solution))
        if b.merged:
            self._rho = mix(c[-1:], r[-1:], valid[-1:], count[-1:])
            return
        total = int(count[-1])
        plus, minus = mix(c[:-1], r[:-1], valid[:-1], count[:-1], target=b.target, total=total)
        self._rho = (plus * valid[-1], minus * valid[-1])

    def _solve(self) -> None:
        """Unless something is not finite: then the step is lost, but not the balance's state."""
        b = self._b
        b.reduce()
        if b.jacobian.slots > 1 and dist.is_available() and dist.is_initialized():
            shares = self.share_RS.to(b.parameters[0].device, torch.float32)
            dist.all_reduce(shares)
            self.share_RS = shares.double().cpu()
        lost = b.not_finite()
        if lost:
            self._notes = (f"The gradient of {', '.join(lost)} is not finite: no step.",)
        if self._tally.any_bad(b.parameters[0].device) or lost:
            self._settle(b.ordinary(self.step, self.active_K))
        else:
            self._settle(b.solve(self))

    def _watch(
        self,
        v: Tensor,
        v_old: Tensor,
        x_t: Tensor,
        x_0: Tensor,
        t_B: Tensor,
        noise: Tensor | None,
        at: Tensor,
        finite_B: Tensor,
    ) -> None:
        """Adds losses and distances to the tally, and the samples whose loss is not finite."""
        plus, minus = self._b.objective.sides(v.detach(), v_old, x_t, x_0, t_B, noise)
        deviation = (v.detach().float() - v_old.float()).square().flatten(1).mean(1)
        finite_B &= plus.isfinite() & minus.isfinite()
        # One copy to the host for all of them.
        columns = torch.stack([plus, minus, deviation.to(plus), finite_B.to(plus)]).double().cpu()
        self._tally.add(at, columns[0], columns[1], columns[2], columns[3] > 0)

    def _report(self, bad: list[int]) -> StepReport:
        b, solution = self._b, self._solution
        assert solution is not None
        notes = solution.notes + self._notes
        if bad:
            notes += (f"The loss of {len(bad)} samples is not finite: no step.",)
        loss = float(b.direction(solution) @ self._tally.losses_R.numpy())
        grads = [p.grad for p in b.parameters if p.grad is not None]
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
            harmony_sum=b.sum_harmony if measured else None,
            gap=solution.gap,
            loss=loss,
            kl=self._tally.kl,
            old_deviation=self._tally.deviation,
            refreshed=solution.refreshed,
            finite=not (bad or self._notes or overflow or not np.isfinite(loss)),
            bad_samples=bad,
            notes=notes,
        )


def _finite(side: Tensor) -> Tensor:
    return side.flatten(1).isfinite().all(1)


def _column(value_B: Tensor, like: Tensor) -> Tensor:
    return value_B.view(-1, *[1] * (like.dim() - 1))


def _all_reduce_grads(parameters: list[nn.Parameter]) -> None:
    """Sums `.grad` over processes, as one vector; a process that had no micro-batch adds zeros."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    dist.all_reduce(flat)
    for p, value in zip(parameters, flat.split([p.numel() for p in parameters])):
        assert p.grad is not None
        p.grad.copy_(value.view_as(p))
