"""Rewards summed before any gradient: the baselines that people know."""

from __future__ import annotations

from ._fixed import Fixed


class WeightedSum(Fixed):
    """One advantage of Σ_k w_k R_k over the applicable rewards."""

    name = "weighted_sum"
    merges = "rewards"
    saved_as = Fixed.name


class GDPO(Fixed):
    """Σ_k w_k A_k over the applicable rewards, divided by its own std over the batch."""

    name = "gdpo"
    merges = "advantages"
    saved_as = Fixed.name
