"""Nash-MTL: the bargaining solution (https://arxiv.org/abs/2202.01017)."""

from __future__ import annotations

import numpy as np

from ._linalg import Array, cosines
from ._rule import GramRule, Weights

# Keeps the game solvable where the gradients cancel; far below the noise of any gradient.
_RIDGE = 1e-13


class Nash(GramRule):
    """α > 0 with α_k (Gα)_k = π_k: every reward's share of d·d is its bargaining power.

    The minimiser of the convex ½αᵀGα − Σ π_k log α_k, by damped Newton steps (the objective is
    self-concordant, so they converge from anywhere), where the original linearises a concave
    problem. Conflicts with no reward, as (Gα)_k = π_k/α_k > 0. Independent of the lengths of
    the gradients up to the length of d. Pareto-stationary gradients have no solution: a ridge
    of 1e-13 then gives the combination that cancels.
    """

    name = "nash"

    def weights(self, gram: Array, preference: Array) -> Weights:
        norms, cos = cosines(gram)
        power = preference / preference.min()  # ≥ 1 makes the objective self-concordant
        q = cos + _RIDGE * np.eye(len(cos))
        # q·1 ≥ the diagonal only if no one conflicts: start where the quadratic is of order 1.
        x = np.full(len(cos), 1.0 / np.sqrt(max(float(q.sum() / len(q)), 1e-3)))
        for _ in range(200):
            slope = q @ x - power / x
            step = np.linalg.solve(q + np.diag(power / x**2), -slope)
            decrement = float(np.sqrt(max(float(-slope @ step), 0.0)))
            x = x + step / (1.0 + decrement) if decrement > 0.25 else x + step
            if decrement < 1e-10:
                break
        residual = float(np.abs(x * (q @ x) / power - 1.0).max())
        return Weights(x * np.sqrt(preference.min()) / norms, info={"residual": residual})
