"""A denoiser's passes as CUDA graphs (`marble.replay`): those that draw, and those that train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from marble.models.conditioning import Conditioning
from marble.replay import Record, Recordings, Replayed, Say

Pass = Callable[[Tensor, Tensor, Conditioning], Tensor]


class Graphs:
    """Passes without gradients. Text of any length is not recorded: its lengths are numbers on the
    host."""

    def __init__(self, velocity: Pass, say: Say, *, record: Record | None = None) -> None:
        self._velocity = velocity
        self._names: tuple[str, ...] = ()
        self._replayed = Replayed(self._flat, "sampling", say, record=record)

    @property
    def replayed(self) -> int:
        return self._replayed.replayed

    def __call__(self, x: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        if cond.ragged:
            return self._velocity(x, sigma_B, cond)
        self._names = tuple(cond.tensors)
        found: Tensor = self._replayed(x, sigma_B, *cond.tensors.values())
        return found

    def _flat(self, x: Tensor, sigma_B: Tensor, *text: Tensor) -> Tensor:
        return self._velocity(x, sigma_B, Conditioning(dict(zip(self._names, text))))


class TrainedGraphs:
    """Passes to be differentiated by some parameters, once each and before the next: one graph for
    a pass, one for its backward pass."""

    def __init__(
        self,
        velocity: Pass,
        parameters: Sequence[Tensor],
        say: Say,
        *,
        record: Record | None = None,
    ) -> None:
        self._velocity, self._parameters = velocity, tuple(parameters)
        self._recordings = Recordings("training", say, record)
        self.replayed = 0

    def __call__(self, x: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        if cond.ragged:
            return self._velocity(x, sigma_B, cond)
        inputs = (x, sigma_B, *cond.tensors.values())
        key = tuple((t.shape, t.dtype, t.stride()) for t in inputs)
        tape = self._recordings.find(
            key,
            lambda record: _Tape(
                record, self._velocity, self._parameters, inputs, tuple(cond.tensors)
            ),
        )
        if tape is None:
            return self._velocity(x, sigma_B, cond)
        self.replayed += 1
        tape.fill(inputs)
        found: Tensor = _Replay.apply(tape, *self._parameters)
        return found


class _Tape:
    """The recorded pass and backward pass of one size, and the memory they read and write."""

    def __init__(
        self,
        record: Record,
        velocity: Pass,
        parameters: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
        names: tuple[str, ...],
    ) -> None:
        self._places = [tensor.clone() for tensor in inputs]
        self.turn = 0
        """Counts passes: a second one overwrites what the backward pass of the first needs."""
        live: list[Tensor] = []

        def forward() -> Tensor:
            x, sigma_B, *text = self._places
            with torch.enable_grad():
                live[:] = [velocity(x, sigma_B, Conditioning(dict(zip(names, text))))]
            return live[0].detach()

        def backward() -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(live[0], parameters, self.given, allow_unused=True)

        self.forward, self.result = record(forward)
        self.given = torch.zeros_like(self.result)
        self.backward, self._gradients = record(backward)

    def fill(self, inputs: tuple[Tensor, ...]) -> None:
        for place, tensor in zip(self._places, inputs):
            place.copy_(tensor, non_blocking=True)

    def gradients(self) -> list[Tensor | None]:
        """Copies: the optimiser's `.grad` must not be the memory that the next pass writes."""
        found = [g for g in self._gradients if g is not None]
        copies = iter(torch._foreach_mul(found, 1.0))
        return [None if g is None else next(copies) for g in self._gradients]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: _Tape, *parameters: Tensor) -> Tensor:
        tape.forward()
        tape.turn += 1
        ctx.tape, ctx.turn = tape, tape.turn
        return tape.result.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tape: _Tape = ctx.tape
        if ctx.turn != tape.turn:
            raise RuntimeError("a replayed pass is differentiated before the next one, and once")
        tape.turn += 1
        tape.given.copy_(grads[0])
        tape.backward()
        return (None, *tape.gradients())
