"""What a recipe will do that looks like a fault and is none."""

from __future__ import annotations

from marble.recipe.schema import Recipe


def notes(recipe: Recipe) -> list[str]:
    """Sentences for the start of a run and for `marble doctor`."""
    found = []
    if halves(recipe):
        found.append(
            "two rewards: α is (½, ½) in every step, whatever their gradients, because the point "
            "of least norm between two vectors of the same length is the middle; only the scale "
            "of each gradient is balanced. balance.priorities or balance.method=progress weight "
            "two rewards differently"
        )
    return found


def halves(recipe: Recipe) -> bool:
    """Whether α is (½, ½) throughout: such a rule with two rewards and nothing else."""
    balance = recipe.balance
    priorities = set(balance.priorities.values()) or {1.0}
    alike = len(priorities) == 1 and len(balance.priorities) in (0, 2)
    steered = balance.hybrid != "none" or bool(balance.floors)
    return balance.rule.halves and len(recipe.rewards.train) == 2 and alike and not steered
