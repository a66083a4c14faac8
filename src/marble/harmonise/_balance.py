"""One solve with all options: ridge, priorities, groups, floors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._floors import keep_floors
from ._groups import grouped_weights
from ._linalg import Array, cosines, on_simplex
from ._opposed import OPPOSITE, opposed_pairs
from ._rule import GramRule, Weights


@dataclass(frozen=True)
class Options:
    """Vectors over the rewards; see `Harmoniser` for what they mean."""

    priorities_K: Array
    floors_K: Array
    group_K: Array | None
    ridge: float

    def of(self, index: Array) -> Options:
        """The same for some of the rewards."""
        group = None if self.group_K is None else self.group_K[index]
        return Options(self.priorities_K[index], self.floors_K[index], group, self.ridge)


@dataclass(frozen=True)
class Balanced:
    """α* with Σα = 1, the certificate of its solve, who took part, and what happened."""

    alpha: Array
    gap: float | None
    took_part: Array
    notes: tuple[str, ...]


def balance(rule: GramRule, gram: Array, options: Options, names: Sequence[str]) -> Balanced:
    """The rule's weights for non-zero gradients, under the options.

    Ridge, groups and priorities shape what the rule sees; floors are kept on the true cosines last
    of all. Rewards that cancel out stay outside, if the rule says so and others are left.
    """
    matrix = cosines(gram)[1] if rule.normalise else gram
    seen = matrix + options.ridge * np.diag(np.diagonal(matrix))
    preference = options.priorities_K / options.priorities_K.mean()
    notes: list[str] = []
    took_part = np.ones(len(gram), dtype=bool)
    if options.group_K is None:
        pairs = opposed_pairs(cosines(gram)[1], OPPOSITE) if rule.drops_opposed else []
        if 2 * len(pairs) < len(gram):
            took_part[[one for pair in pairs for one in pair]] = False
            notes += [f"{names[i]} and {names[j]} cancel out: left out." for i, j in pairs]
        answer = _among(rule, seen, preference, took_part)
    else:
        answer, took_part = grouped_weights(rule, seen, preference, options.group_K)
        if not took_part.all():
            cancelled = [name for name, present in zip(names, took_part) if not present]
            notes.append(f"Cancelled inside their group: {', '.join(cancelled)}.")
    alpha = on_simplex(answer.alpha)
    if not np.isnan(options.floors_K).all():
        floored = keep_floors(alpha, matrix, options.floors_K, options.priorities_K)
        alpha = on_simplex(floored.alpha)
        for name, before, after in zip(names, options.floors_K, floored.floors):
            if np.isnan(before) or before == after:
                continue
            became = "given up" if np.isnan(after) else f"relaxed to {after:.3g}"
            notes.append(f"Floors cannot all hold: that of {name} ({before:.3g}) is {became}.")
    return Balanced(alpha, answer.gap, took_part, tuple(notes))


def _among(rule: GramRule, gram: Array, preference: Array, took_part: Array) -> Weights:
    """The rule's weights for those who take part; 0 for the others."""
    if took_part.all():
        return rule.weights(gram, preference)
    index = np.flatnonzero(took_part)
    answer = rule.weights(gram[np.ix_(index, index)], preference[index] / preference[index].mean())
    alpha = np.zeros(len(gram))
    alpha[index] = answer.alpha
    return Weights(alpha, answer.gap, answer.info)
