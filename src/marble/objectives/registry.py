"""Objectives by name: one line each."""

from __future__ import annotations

from marble.objectives.base import Objective
from marble.objectives.nft import NFT as Default
from marble.objectives.nft import Options as DefaultOptions
from marble.plugins import find

__all__ = ["DEFAULT", "OBJECTIVES", "Default", "DefaultOptions", "objective_class"]

OBJECTIVES = {
    "nft": "marble.objectives.nft:NFT",
    "awm": "marble.objectives.awm:AWM",
    "grpo": "marble.objectives.grpo:GRPO",
    "dpo": "marble.objectives.dpo:DPO",
    "distil": "marble.objectives.distil:Distil",
}
DEFAULT = Default.name
"""What a recipe that names none trains with."""


def objective_class(name: str) -> type[Objective]:
    """The objective called `name`: built in, an entry point, or `module:Class`."""
    return find("objective", name, OBJECTIVES, Objective)
