"""A step's recorded gradients: K rewards' and their sum's, by halves of the step where asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from marble.jacobian import Jacobian
from marble.jacobian.passes import Term


class Gradients:
    """Owns the `Jacobian`, made when it is first needed; knows no rule and no objective.

    halves: keep the step's samples in two halves, for products across independent parts.
    shares: for each reward, which entries of the parameters are its own.
    own: there, this part of the coefficients' sum goes to that reward's gradient alone.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        *,
        halves: bool,
        shares: Sequence[Mapping[nn.Parameter, Tensor]] = (),
        own: float = 0.0,
    ) -> None:
        self._shares, self._own = list(shares) if own else [], own
        self._places: list[Tensor] | None = None
        self.names, self.k, self.halves = list(names), len(names), halves
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._model = model
        self._jacobian: Jacobian | None = None
        self._dealt = 0
        self._slot_N = torch.zeros(0)
        self.share_RS = torch.zeros(self.k + 1, 2, dtype=torch.float64)
        """Part of each row's pairs that a half of the step holds; all processes' after `reduce`."""

    @property
    def jacobian(self) -> Jacobian:
        if self._jacobian is None:
            self._jacobian = Jacobian(
                self._model,
                self.k + 1,  # one further row, at next to no cost: what the sum would have done
                names=[*self.names, "weighted sum"],
                slots=2 if self.halves else 1,
            )
        return self._jacobian

    @property
    def made(self) -> bool:
        return self._jacobian is not None

    def no_sync(self) -> AbstractContextManager[Any]:
        """A step sums gradients over processes once, so DDP must not do it in every backward."""
        context = getattr(self._model, "no_sync", None)
        return context() if callable(context) else nullcontext()

    # -- recording --------------------------------------------------------------------------------

    def begin(self, samples: int) -> None:
        """Empties everything for a step of so many samples."""
        if self._jacobian is not None:
            self._jacobian.zero()
        self._dealt = 0
        self._slot_N = torch.full((samples,), -1)
        self.share_RS = torch.zeros(self.k + 1, 2, dtype=torch.float64)

    def add(
        self, v: Tensor, terms: Sequence[Term], outside: Tensor | None, share: Tensor, at: Tensor
    ) -> None:
        """A micro-batch of the samples `at`; `share` is its part of every row's pairs."""
        slot = self._slot(at)
        self.share_RS[:, slot] += share.sum(1)
        self.jacobian.backward(v, terms, outside=outside, slot=slot)

    def _slot(self, at: Tensor) -> int:
        """The half of the step a micro-batch goes to.

        A sample stays in its half at all its timesteps: halves that share a picture share its
        noise, and would agree with each other more than with a new batch.
        """
        known = int(self._slot_N[at].max())
        if known < 0:
            known = (self._dealt + _rank()) % self.jacobian.slots
            self._dealt += 1
        self._slot_N[at] = known
        return known

    def reduce(self, scale: float) -> None:
        """Sums over processes and takes the loss scale out."""
        self.jacobian.reduce()
        if scale != 1:
            for rows in (self.jacobian.rows, self.jacobian.outside):
                if rows is not None:
                    rows.data.div_(scale)
        if self.halves and dist.is_available() and dist.is_initialized():
            shares = self.share_RS.to(self.parameters[0].device, torch.float32)
            dist.all_reduce(shares)
            self.share_RS = shares.double().cpu()

    def not_finite(self) -> list[str]:
        """Names of the rewards whose recorded gradient is not finite."""
        largest = torch.linalg.vector_norm(self.jacobian.rows.data, torch.inf, dim=2)
        finite = largest.isfinite().all(0)[: self.k].tolist()
        return [name for name, good in zip(self.names, finite) if not good]

    @property
    def apart(self) -> bool:
        """Whether some parameters have coefficients of their own, so that every step needs the K
        gradients."""
        return bool(self._shares)

    def write(self, direction_R: np.ndarray) -> None:
        """Leaves the combination of the recorded gradients in `.grad`."""
        c_R = torch.as_tensor(direction_R)
        if self._places is None:
            self._places = [self.jacobian.flatten(share).nonzero()[:, 0] for share in self._shares]
        parts = []
        for k, at in enumerate(self._places):
            own_R = (1 - self._own) * c_R
            own_R[k] += self._own * c_R.sum()
            parts.append((at, own_R))
        self.jacobian.write_grad(c_R, parts=parts)

    # -- products ---------------------------------------------------------------------------------

    def gram(self, slots: tuple[int, int] | None = None) -> np.ndarray:
        return self.jacobian.gram(slots).numpy()

    @property
    def has_halves(self) -> bool:
        """Whether both halves of the step hold something."""
        return bool((self.share_RS > 0).any(0).all())

    def half_gram(self, a: int, b: int) -> np.ndarray:
        """Products of the *mean* gradients of two halves: slots hold sums over part of the step."""
        share = self.share_RS.numpy()
        safe = np.where(share > 0, share, 1.0)
        return np.asarray(self.gram((a, b)) / safe[:, None, a] / safe[None, :, b])


def norms_of(gram: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.maximum(np.diagonal(gram), 0.0)))


def sum_grads(parameters: list[nn.Parameter]) -> None:
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


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
