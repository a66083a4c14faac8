"""What a `Balancer` is told, checked before a run begins."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marble.balance.gates import Gate
from marble.errors import MarbleError
from marble.harmonise import RULES

MERGED = ("weighted_sum", "gdpo")
"""Methods that merge rewards into one advantage before any gradient."""
GATED = ("single", "dropout", "sequential")
"""Methods that are a choice of rewards per step."""


def reward_weights(weights: Mapping[str, float] | None, names: Sequence[str]) -> Tensor:
    unknown = [name for name in weights or {} if name not in names]
    if unknown:
        raise MarbleError(f"weights: there is no reward {unknown[0]!r}; known: {', '.join(names)}.")
    return torch.tensor(
        [float((weights or {}).get(name, 1.0)) for name in names], dtype=torch.float64
    )


def check_settings(
    model: nn.Module,
    method: str,
    target: str,
    metric: str,
    optimizer: torch.optim.Optimizer | None,
    debias: bool,
    gradient_ema: float,
    gate: Gate | None,
) -> None:
    """Settings that would otherwise fail, or silently do something else, in the middle of a run."""
    known = (*RULES, *MERGED, *GATED)
    if method not in known:
        close = difflib.get_close_matches(str(method), known, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        listed = ", ".join(known)
        raise MarbleError(f"There is no balancing method {method!r}. {hint}Known: {listed}.")
    if target not in ("full", "reward"):
        raise MarbleError(f"target = {target!r}: choose 'full' or 'reward'.")
    if metric not in ("plain", "adam"):
        raise MarbleError(f"metric = {metric!r}: choose 'plain' or 'adam'.")
    if metric == "adam" and optimizer is None:
        raise MarbleError("metric='adam' reads Adam's second moments: give optimizer=.")
    if debias and gradient_ema:
        raise MarbleError("debias and gradient_ema both cure noise in the Gram matrix: take one.")
    if method in ("single", "sequential") and gate is None:
        raise MarbleError(
            f"Method {method!r} needs to know which rewards take part when: give gate=, for "
            "example marble.balance.gates.only(k, 0) or .stages(k, [0, 100], [[0], [0, 1]])."
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise MarbleError("The model has no trainable parameter. Add a LoRA, or unfreeze some.")
    if any(hasattr(p, "full_tensor") for p in model.parameters() if p.requires_grad):
        raise MarbleError(
            "The model's trained parameters are sharded (FSDP). Balancer sums whole gradients over "
            "processes: shard only what is frozen (fully_shard's ignored_params), or use "
            "marble.jacobian.Jacobian itself."
        )


def rule_of(
    method: str, names: Sequence[str], weights_K: Tensor, options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """The harmoniser's rule behind a method; gated and merged ones have constant weights."""
    if method in MERGED or method == "fixed":
        return "fixed", {"weights": dict(zip(names, weights_K.tolist())), **(options or {})}
    if method in GATED:
        return "uniform", dict(options or {})
    return method, dict(options or {})
