"""Switches a model's covered layers between their ordinary and their recorded form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from marble.errors import MarbleError
from marble.jacobian.layers import Span
from marble.jacobian.linear import MAKE_PROBE, PROBE, Recorded

OnGrad = Callable[[int, Tensor], None]


class Recorder:
    """Owns the probes: one per trainable weight and batch size, a single element of memory each.

    ``on_grad(index, grad_B)`` is called in backward with the per-sample gradients of span
    ``index``, which are freed when it returns.
    """

    def __init__(self, spans: Sequence[Span], dtype: torch.dtype, on_grad: OnGrad) -> None:
        self._spans = spans
        self._dtype = dtype
        self._on_grad = on_grad
        self._probes: dict[int, dict[int, Tensor]] = {}
        self._active = False

    @contextmanager
    def layers(self, batch: int | None) -> Iterator[None]:
        """Layers are recorded inside. Their class is swapped: nothing is left in their path on
        ordinary steps, and compiled code, which guards on types, keeps a version for each."""
        if self._active:
            raise MarbleError("Jacobian: recording() is already active; do not nest it.")
        self._active = True
        started: list[nn.Linear] = []
        try:
            for index, span in enumerate(self._spans):
                make = partial(self._probe, index)
                probe = None if batch is None else make(batch)
                for module in span.modules:
                    vars(module)[PROBE] = probe
                    vars(module)[MAKE_PROBE] = make
                    module.__class__ = _recorded_class(type(module))
                    started.append(module)
            yield
        finally:
            for module in started:
                module.__class__ = type(module).__mro__[2]
                del vars(module)[PROBE], vars(module)[MAKE_PROBE]
            self._active = False

    def probes(self, v: Tensor) -> list[Tensor]:
        """The probes of a forward whose output is ``v``."""
        probes = self._probes.get(v.shape[0])
        if not probes or not v.requires_grad:
            raise MarbleError(
                "Jacobian.backward: v was not computed by a recorded forward of this batch size; "
                "compute it inside `with jac.recording():`, with gradients enabled."
            )
        return list(probes.values())

    def _probe(self, index: int, batch: int) -> Tensor:
        probes = self._probes.setdefault(batch, {})
        if index not in probes:
            probes[index] = self._new_probe(index, batch)
        return probes[index]

    def _new_probe(self, index: int, batch: int) -> Tensor:
        weight = self._spans[index].parameter
        probe = torch.zeros((), dtype=self._dtype, device=weight.device)
        probe = probe.expand(batch, *weight.shape).requires_grad_()

        def hand_over(leaf: Tensor) -> None:
            grad, leaf.grad = leaf.grad, None
            assert grad is not None
            self._on_grad(index, grad)

        probe.register_post_accumulate_grad_hook(hand_over)
        return probe


_recorded_classes: dict[type, type] = {}


def _recorded_class(cls: type) -> type:
    if cls not in _recorded_classes:
        _recorded_classes[cls] = type(f"Recorded{cls.__name__}", (Recorded, cls), {})
    return _recorded_classes[cls]
