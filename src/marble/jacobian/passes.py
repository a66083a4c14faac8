"""The backward passes of one micro-batch: which cotangent, which coefficients, into which rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from marble.errors import MarbleError
from marble.jacobian.layers import Span
from marble.jacobian.store import Rows


class Pass(NamedTuple):
    cotangent: Tensor
    coef: Tensor
    """[rows, B]: how much of each sample goes to each row."""
    rows: Rows
    slot: int

    def add(self, span: Span, grad_B: Tensor) -> None:
        if grad_B.shape[0] != self.coef.shape[1]:
            raise MarbleError(
                f"Layer {span.name} saw an input with first axis {grad_B.shape[0]} in a batch of "
                f"{self.coef.shape[1]}; per-sample gradients need inputs of shape "
                "[batch, …, features]."
            )
        self.rows.add(self.slot, self.coef, grad_B, span.start, span.stop)


Term = tuple[Tensor, Tensor]
"""(cotangent like v, weights [K, B]): adds ``Σ_i weight_ki · cotangent_i·∂v_i/∂θ`` to g_k."""


@torch.no_grad()
def plan(
    rows: Rows,
    outside_rows: Callable[[], Rows],
    slot: int,
    v: Tensor,
    terms: Sequence[Term],
    outside: Tensor | None,
) -> list[Pass]:
    """One pass per term, and one for what is outside the balance."""
    _check_shapes(rows.data.shape[1], v, terms, outside)
    passes = [Pass(cotangent, weight.to(rows.data), rows, slot) for cotangent, weight in terms]
    if outside is not None:
        passes.append(Pass(outside, rows.data.new_ones(1, v.shape[0]), outside_rows(), 0))
    return [p._replace(cotangent=p.cotangent.to(v.dtype)) for p in passes]


class Faults:
    """Remembers, on the device, whether inputs were finite; `check` reads it and raises.

    Reading at once would make the device wait for the host in every micro-batch.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._passed = 0

    def watch(self, passes: Sequence[Pass]) -> None:
        finite_B = torch.stack([p.cotangent.flatten(1).isfinite().all(1) for p in passes]).all(0)
        inside = [p.coef for p in passes if len(p.coef) == len(self._names)]
        finite_K = torch.stack([coef.isfinite().all(1) for coef in inside]).all(0)
        self._seen.append((finite_B, finite_K))

    def clear(self) -> None:
        self._seen.clear()
        self._passed = 0

    def check(self) -> None:
        """Raises for what was watched since the last check, by one read of the device."""
        if not self._seen:
            return
        flags = [flag for pair in self._seen for flag in pair]
        parts = iter(torch.cat(flags).cpu().split([len(flag) for flag in flags]))
        for micro_batch, (finite_B, finite_K) in enumerate(zip(parts, parts), self._passed):
            bad = (~finite_K).nonzero().flatten().tolist()
            if bad:
                raise MarbleError(
                    f"Reward {', '.join(self._names[k] for k in bad)}: a weight is not finite "
                    f"for a sample that counts, in micro-batch {micro_batch}; give weight 0 "
                    "where a reward does not apply."
                )
            bad = (~finite_B).nonzero().flatten().tolist()
            if bad:
                raise MarbleError(
                    f"The cotangent of sample {bad[0]} in micro-batch {micro_batch} is not "
                    "finite, and so is every reward's gradient; skip this step (jac.zero()) and "
                    "look at what the model gave for that sample."
                )
        self._passed += len(self._seen)
        self._seen.clear()


def _check_shapes(k: int, v: Tensor, terms: Sequence[Term], outside: Tensor | None) -> None:
    if not terms:
        raise MarbleError("Jacobian.backward: give at least one term (cotangent, weights).")
    wanted: list[tuple[str, Tensor, tuple[int, ...]]] = []
    for number, (cotangent, weight) in enumerate(terms):
        wanted.append((f"cotangent {number}", cotangent, tuple(v.shape)))
        wanted.append((f"weights {number}", weight, (k, v.shape[0])))
    if outside is not None:
        wanted.append(("outside", outside, tuple(v.shape)))
    for name, tensor, shape in wanted:
        if tuple(tensor.shape) != shape:
            raise MarbleError(
                f"Jacobian.backward: {name} has shape {tuple(tensor.shape)}, expected {shape}."
            )
