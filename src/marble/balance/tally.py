"""What a step adds up besides gradients: losses, KL, distances, samples gone wrong."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from marble.errors import MarbleError


class Tally:
    """Sums over the (sample, timestep) pairs of a step; `reduce` adds up those of all processes.

    Values stay on their device until someone asks: fetching them at once would make the host wait
    for the device in every micro-batch, and the device then for the host.
    """

    def __init__(self, a_RN: Tensor, b_RN: Tensor, share_RN: Tensor) -> None:
        rows, samples = a_RN.shape
        self._a_RN, self._b_RN = (torch.where(share_RN > 0, side, 0.5) for side in (a_RN, b_RN))
        self._share_RN = share_RN
        sums = torch.zeros(rows + 3 + 2 * samples, dtype=torch.float64)
        self._sums = sums
        # Views, so that one collective serves all of them.
        self.losses_R, self._kl, self._deviation, self._seen_N, self._bad_N = sums.split(
            [rows, 2, 1, samples, samples]
        )
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._waiting_kl: list[Tensor] = []

    def add(
        self, at: Tensor, plus: Tensor, minus: Tensor, deviation: Tensor, finite: Tensor
    ) -> None:
        """Pairs of the samples `at`: both sides of their loss and their distance to v_old."""
        columns = torch.stack([plus, minus, deviation.to(plus), finite.to(plus)]).double()
        self._waiting.append((at, columns))

    def add_kl(self, squared: Tensor) -> None:
        """‖v − v_ref‖² of some pairs; not every micro-batch has to measure it."""
        self._waiting_kl.append(squared.double())

    def _fetch(self) -> None:
        """Adds up what waits on the device, in the order it came: one copy for all of it."""
        if self._waiting:
            sizes = [len(at) for at, _ in self._waiting]
            fetched = torch.cat([columns for _, columns in self._waiting], 1).cpu()
            for (at, _), columns in zip(self._waiting, fetched.split(sizes, 1)):
                self._add(at, columns[0], columns[1], columns[2], columns[3] > 0)
        if self._waiting_kl:
            sizes = [len(squared) for squared in self._waiting_kl]
            for squared in torch.cat(self._waiting_kl).cpu().split(sizes):
                count = squared.new_tensor(float(len(squared)))
                self._kl += torch.stack([squared.sum(), count])
        self._waiting, self._waiting_kl = [], []

    def _add(
        self, at: Tensor, plus: Tensor, minus: Tensor, deviation: Tensor, finite: Tensor
    ) -> None:
        a, b, share = self._a_RN[:, at], self._b_RN[:, at], self._share_RN[:, at]
        loss = torch.where(share > 0, a * plus + b * minus, 0.0)
        self.losses_R += (share * loss).sum(1)
        self._deviation += deviation.sum()
        self._seen_N.index_add_(0, at, torch.ones_like(plus))
        self._bad_N.index_add_(0, at, (~finite).double())

    def any_bad(self, device: torch.device) -> bool:
        """Whether any process has met a sample whose loss is not finite. All of them must ask."""
        self._fetch()
        flag = self._bad_N.any().float().to(device)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)

    def reduce(self, device: torch.device) -> None:
        self._fetch()
        if dist.is_available() and dist.is_initialized():
            moved = self._sums.to(device)  # where the backend can reach it
            dist.all_reduce(moved)
            self._sums.copy_(moved)

    def check(self, pairs: int) -> None:
        """After `reduce`: every sample came as often as `begin_step` was told."""
        wrong = (self._seen_N != pairs).nonzero().flatten().tolist()
        if wrong:
            raise MarbleError(
                f"Sample {wrong[0]} of the step went through backward "
                f"{int(self._seen_N[wrong[0]])} times over all processes, not {pairs} "
                f"({len(wrong)} such samples). begin_step(…, pairs=) says how often each is "
                "trained on; to train on some of the samples give begin_step batch.select(index)."
            )

    @property
    def kl(self) -> float:
        """Mean ‖v − v_ref‖² of the pairs it was measured on; NaN without any."""
        return float(self._kl[0] / self._kl[1])

    @property
    def deviation(self) -> float:
        return float(self._deviation[0] / self._seen_N.sum())

    @property
    def bad_samples(self) -> list[int]:
        return self._bad_N.nonzero().flatten().tolist()
