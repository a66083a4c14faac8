"""What a `Balancer` is told, checked before a run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from marble.balance.gates import Gate
from marble.errors import MarbleError
from marble.harmonise import Rule
from marble.objectives import Objective


def reward_weights(weights: Mapping[str, float] | None, names: Sequence[str]) -> Tensor:
    unknown = [name for name in weights or {} if name not in names]
    if unknown:
        raise MarbleError(f"weights: there is no reward {unknown[0]!r}; known: {', '.join(names)}.")
    return torch.tensor(
        [float((weights or {}).get(name, 1.0)) for name in names], dtype=torch.float64
    )


def check_kinds(model: Any, names: Any, objective: Any) -> None:
    """What Python would take for something else, or refuse in words that do not help."""
    if not isinstance(model, nn.Module):
        raise MarbleError(
            f"model: give the nn.Module whose trainable weights are balanced, not a "
            f"{type(model).__name__}."
        )
    if isinstance(names, str):
        raise MarbleError(f"names = {names!r}: give a list of reward names, [{names!r}].")
    if not isinstance(objective, Objective):
        raise MarbleError(
            f"objective = {objective!r:.60}: give an objective that is made, such as "
            "marble.objectives.NFT()."
        )


Target = Literal["full", "reward"]


def target_of(target: Target | None, objective: Objective | type[Objective]) -> Target:
    """What is balanced: `target`, or what suits the objective where nothing is said."""
    return target or ("reward" if objective.common_pull else "full")


def check_settings(
    model: nn.Module,
    rule: type[Rule],
    objective: Objective,
    target: str,
    gate: Gate | None,
) -> None:
    """Settings that would otherwise fail, or silently do something else, in the middle of a run."""
    if target not in ("full", "reward"):
        raise MarbleError(f"target = {target!r}: choose 'full' or 'reward'.")
    if target == "reward" and not objective.common_pull:
        raise MarbleError(
            f"target 'reward' splits off the pull that is common to all rewards; objective "
            f"{objective.name} has none: its whole gradient is driven by rewards. Use 'full'."
        )
    if rule.chosen_by and gate is None:
        raise MarbleError(
            f"Method {rule.name!r} needs to know which rewards take part when: give gate=, for "
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


def rule_options(
    rule: type[Rule], names: Sequence[str], weights_K: Tensor, options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The rule's own options; one that has `weights` gets those of the rewards."""
    given = {}
    if "weights" in rule.Options.model_fields:
        given = {"weights": dict(zip(names, weights_K.tolist()))}
    return {**given, **(options or {})}
