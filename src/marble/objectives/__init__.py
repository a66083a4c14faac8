"""Objectives: what is minimised for a reward. One file each; see docs/extend.md."""

from marble.objectives.base import Drawn, Objective, ObjectiveOptions, Point
from marble.objectives.mix import mix, terms
from marble.objectives.nft import NFT
from marble.objectives.registry import OBJECTIVES, objective_class

__all__ = [
    "NFT",
    "OBJECTIVES",
    "Drawn",
    "Objective",
    "ObjectiveOptions",
    "Point",
    "mix",
    "objective_class",
    "terms",
]
