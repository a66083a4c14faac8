"""Switches a model's covered layers between their ordinary and their recorded form."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from marble.errors import MarbleError
from marble.jacobian.layers import Span
from marble.jacobian.linear import MAKE_PROBE, PROBE, Recorded

OnGrad = Callable[[Span, Tensor], None]


class Recorder:
    """Owns the probes: one per trainable weight and batch size, a single element of memory each."""

    def __init__(self, spans: Sequence[Span], dtype: torch.dtype) -> None:
        self._spans = spans
        self._dtype = dtype
        self._on_grad: OnGrad | None = None
        self._probes: dict[int, dict[int, Tensor]] = {}
        self._active = False

    @contextmanager
    def layers(self, batch: int | None) -> Iterator[None]:
        """Layers are recorded inside. Their class is swapped: nothing is left in their path on
        ordinary steps, and compiled code, which guards on types, keeps a version for each."""
        if self._active:
            raise MarbleError(
                "Jacobian: recording() is already active; do not nest it, and leave "
                "it before jac.backward."
            )
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

    def backward(self, v: Tensor, cotangent: Tensor, on_grad: OnGrad, *, retain: bool) -> None:
        """One backward pass from ``v``, the output of a recorded forward, inside `layers`.

        Calls ``on_grad(span, grad_B)`` with the per-sample gradients of every span that takes
        part; they are freed when it returns. No parameter's ``.grad`` changes.
        """
        # Probes of every size: one that does not fit this batch has to be noticed, not skipped.
        probes = [probe for sizes in self._probes.values() for probe in sizes.values()]
        reached = 0

        def count(span: Span, grad_B: Tensor) -> None:
            nonlocal reached
            reached += 1
            on_grad(span, grad_B)

        self._on_grad = count
        try:
            # A caller's autocast must not reach the fp32 sums of the per-sample gradients.
            with torch.autocast(v.device.type, enabled=False):
                if v.requires_grad and probes:
                    torch.autograd.backward(v, cotangent, retain_graph=retain, inputs=probes)
        finally:
            self._on_grad = None
        if not reached:
            raise MarbleError(
                "Jacobian.backward: v was not computed by a recorded forward; compute it inside "
                "`with jac.recording():`, with gradients enabled and the trained adapter active."
            )

    def _probe(self, index: int, batch: int) -> Tensor:
        probes = self._probes.setdefault(batch, {})
        if index not in probes:
            probes[index] = self._new_probe(index, batch)
        return probes[index]

    def _new_probe(self, index: int, batch: int) -> Tensor:
        weight = self._spans[index].parameter
        probe = torch.zeros((), dtype=self._dtype, device=weight.device)
        probe = probe.expand(batch, *weight.shape).requires_grad_()
        # Weak: tensors and their hooks are not garbage-collected in cycles, and this one would
        # keep all accumulators alive.
        recorder = weakref.ref(self)

        def hand_over(leaf: Tensor) -> None:
            grad, leaf.grad = leaf.grad, None
            owner = recorder()
            if owner is None or owner._on_grad is None or grad is None:
                raise MarbleError(
                    "A recorded forward was differentiated outside Jacobian.backward; give its "
                    "output only to jac.backward, and run other losses on an ordinary forward."
                )
            owner._on_grad(owner._spans[index], grad)

        probe.register_post_accumulate_grad_hook(hand_over)
        return probe


_recorded_classes: dict[type, type] = {}


def _recorded_class(cls: type) -> type:
    if cls not in _recorded_classes:
        _recorded_classes[cls] = type(f"Recorded{cls.__name__}", (Recorded, cls), {})
    return _recorded_classes[cls]
