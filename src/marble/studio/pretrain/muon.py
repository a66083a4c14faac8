"""Muon (Jordan et al. 2024): momentum whose matrix is made orthogonal before it is applied.

`torch.optim.Muon` takes one matrix after another and a learning rate that is a number, so a step
cannot be recorded as a CUDA graph; here matrices of one shape go through the iteration together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic; its values end near 1, not at it


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """Newton–Schulz: U Vᵀ of each matrix U S Vᵀ in `x` [n, rows, columns], roughly, in bf16."""
    a, b, c = _COEFFICIENTS
    x = x.bfloat16()
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For matrices only. Updates have the size of Adam's, so its learning rate serves."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for same in shapes.values():
                self._move(same, group)

    def _move(self, same: list[Tensor], group: dict[str, Any]) -> None:
        momentum, lr = group["momentum"], group["lr"]
        grads = torch.stack([p.grad for p in same if p.grad is not None])
        state = self.state[same[0]]  # one buffer for all of a shape
        if "mean" not in state:
            state["mean"] = torch.zeros_like(grads)
        mean = state["mean"].lerp_(grads, 1 - momentum)
        update = orthogonalise(grads.lerp(mean, momentum)).float()
        size = 0.2 * max(update.shape[1:]) ** 0.5  # the root mean square of Adam's updates
        torch._foreach_mul_(same, 1 - lr * group["weight_decay"])
        torch._foreach_sub_(same, list((update * (size * lr)).unbind()))
