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


@torch.no_grad()
def plan(
    target: str,
    rows: Rows,
    outside: Callable[[], Rows],
    slot: int,
    v: Tensor,
    P: Tensor,
    N: Tensor,
    r_KB: Tensor,
    weight_KB: Tensor,
    shared_B: Tensor | None,
    extra: Tensor | None,
) -> list[Pass]:
    """Two passes; three where ``extra`` cannot ride along (see `Jacobian.backward`)."""
    _check_shapes(rows.data.shape[1], v, P, N, r_KB, weight_KB, shared_B, extra)
    if (shared_B is None) != (target == "full"):
        raise MarbleError(
            "Jacobian.backward: shared_B, the samples' weights in the common term, is needed "
            "for target='reward' and has no meaning for target='full'."
        )
    weight = weight_KB.to(rows.data)
    # Inapplicable r is NaN, and NaN times a zero weight would stay NaN.
    r = torch.where(weight == 0, 0.5, r_KB.to(rows.data))
    ones = rows.data.new_ones(1, v.shape[0])
    passes = [Pass((P - N) / 2, (2 * r - 1) * weight, rows, slot)]
    half_sum = (P + N) / 2
    if shared_B is None:
        passes.append(Pass(half_sum, weight, rows, slot))
        if extra is not None:
            passes.append(Pass(extra, ones, outside(), 0))
    else:
        common = half_sum * shared_B.to(half_sum).view(-1, *[1] * (v.dim() - 1))
        if extra is not None:
            common = common + extra
        passes.append(Pass(common, ones, outside(), 0))
    return [p._replace(cotangent=p.cotangent.to(v.dtype)) for p in passes]


class Faults:
    """Remembers, on the device, whether inputs were finite; `check` reads it and raises.

    Reading at once would make the device wait for the host in every micro-batch.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._seen: list[tuple[Tensor, Tensor]] = []

    def watch(self, passes: Sequence[Pass]) -> None:
        finite_B = torch.stack([p.cotangent.flatten(1).isfinite().all(1) for p in passes]).all(0)
        self._seen.append((finite_B, passes[0].coef.isfinite().all(1)))

    def clear(self) -> None:
        self._seen.clear()

    def check(self) -> None:
        for micro_batch, (finite_B, finite_K) in enumerate(self._seen):
            bad = (~finite_K).nonzero().flatten().tolist()
            if bad:
                raise MarbleError(
                    f"Reward {', '.join(self._names[k] for k in bad)}: r or weight is not finite "
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


def _check_shapes(
    k: int,
    v: Tensor,
    P: Tensor,
    N: Tensor,
    r_KB: Tensor,
    weight_KB: Tensor,
    shared_B: Tensor | None,
    extra: Tensor | None,
) -> None:
    batch = v.shape[0]
    wanted: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "P": (P, tuple(v.shape)),
        "N": (N, tuple(v.shape)),
        "extra": (extra, tuple(v.shape)),
        "r_KB": (r_KB, (k, batch)),
        "weight_KB": (weight_KB, (k, batch)),
        "shared_B": (shared_B, (batch,)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise MarbleError(
                f"Jacobian.backward: {name} has shape {tuple(tensor.shape)}, expected {shape}."
            )
