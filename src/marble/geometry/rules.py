"""The rules that are compared, and what each answers to a Gram matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marble.harmonise import Rule, get_rule

Array = np.ndarray
GRAM = ("marble", "mgda", "upgrad")


@dataclass(frozen=True)
class Candidate:
    """A rule by label; without `rule`, the gradient of the rewards' weighted sum.

    metric: the inner product that its Gram matrix is taken in.
    """

    label: str
    rule: Rule | None
    metric: Literal["plain", "adam"] = "plain"

    def solve(self, gram_KK: Array, active_K: Array) -> tuple[Array, Array]:
        """(α of the rule, coefficients of K rewards and of their weighted sum)."""
        k = len(gram_KK)
        if self.rule is None:
            return np.full(k, np.nan), np.append(np.zeros(k), 1.0)
        gram = np.where(np.outer(active_K, active_K), gram_KK, 0.0)
        alpha = self.rule(gram).alpha
        norms = np.sqrt(np.maximum(np.diagonal(gram), 0.0))
        return alpha, np.append(self.rule.coefficients(alpha, norms), 0.0)


def candidates(own_K: Sequence[float] | Array | None, *, adam: bool) -> list[Candidate]:
    """All rules; `own_K` are the coefficients that the run itself ended with."""
    found = [Candidate("uniform", get_rule("uniform")), Candidate("weighted sum", None)]
    if own_K is not None:
        found.append(Candidate("as trained", get_rule("fixed", weights=list(own_K))))
    found += [Candidate(name, get_rule(name)) for name in GRAM]
    if adam:
        found += [Candidate(f"{name} (Adam's Gram)", get_rule(name), "adam") for name in GRAM]
    return found
