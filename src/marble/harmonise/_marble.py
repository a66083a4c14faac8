"""MARBLE: normalise, solve, rescale (https://arxiv.org/abs/2605.06507)."""

from __future__ import annotations

from types import MappingProxyType

from marble.options import Section

from ._mgda import MGDA


class Marble(MGDA):
    """The min-norm point of unit gradients, with the mean norm as its length.

        ĝ_k = g_k/‖g_k‖,  α* = argmin_{α ∈ simplex} ‖Σ α_k ĝ_k‖²,  d = n̄ Σ α_k ĝ_k

    d has the same cosine with every reward that has weight, and a larger one with the others:
    the largest worst cosine any direction can have. With a preference π the cosines are in
    proportion to it. Of a reward and its opposite that direction is 0, and no other reward would
    count: two gradients that cancel out are left out of the solve.
    """

    name = "marble"
    Options = Section  # type: ignore[assignment]
    normalise = True
    drops_opposed = True
    halves = True  # the middle is the shortest between two vectors of one length


class MarblePaper(Marble):
    """The rule as published: the average of α begins with the first α*, not with 1/K.

    One batch's α* is mostly noise. Taken whole it decides the first 10 steps, and holds half of
    the average for 20: in the studio an easy reward runs ahead then (docs/which-method.md).
    """

    name = "marble-paper"
    starts_whole = True
    drops_opposed = False
    #: Whatever the defaults become. A reward that tells no samples apart stays in the solve, as in
    #: the published code.
    fixes = MappingProxyType(
        {
            "every": 10,
            "rho": 0.7,
            "amortise": "paper",
            "target": "full",
            "drop_silent": False,
        }
    )
