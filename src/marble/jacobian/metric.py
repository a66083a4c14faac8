"""The diagonal metric in which Adam takes its step."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from marble.errors import MarbleError


def adam_metric(optimizer: Optimizer) -> dict[nn.Parameter, Tensor]:
    """``1 / (√v̂ + eps)`` per parameter, from the state of an Adam or AdamW that has stepped.

    Adam moves along ``M d`` with this diagonal M, so ``dᵀ M g_k`` is the first-order progress of
    reward k under the step as applied; a Gram in this metric harmonises that progress.
    """
    metric: dict[nn.Parameter, Tensor] = {}
    for group in optimizer.param_groups:
        if "betas" not in group or "eps" not in group:
            raise MarbleError(
                f"Adam's metric needs Adam or AdamW, not {type(optimizer).__name__}; "
                "drop the metric or change the optimiser."
            )
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            state = optimizer.state.get(parameter, {})
            if "exp_avg_sq" not in state:
                raise MarbleError(
                    "Adam's metric needs second moments: take at least one optimiser step with a "
                    "gradient on every parameter first."
                )
            correction = 1 - group["betas"][1] ** float(state["step"])
            root = (state["exp_avg_sq"] / correction).sqrt_()
            metric[parameter] = root.add_(group["eps"]).reciprocal_()
    return metric
