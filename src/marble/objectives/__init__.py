"""Losses that are affine in the optimality probability r: sides L⁺, L⁻, their cotangents, and
the per-sample weights that mix K rewards into one backward."""

from marble.objectives.mix import mix
from marble.objectives.nft import NFT

__all__ = ["NFT", "mix"]
