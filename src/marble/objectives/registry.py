"""Objectives by name: one line each."""

from __future__ import annotations

from marble.objectives.base import Objective
from marble.plugins import find

OBJECTIVES = {
    "nft": "marble.objectives.nft:NFT",
    "awm": "marble.objectives.awm:AWM",
    "grpo": "marble.objectives.grpo:GRPO",
    "dpo": "marble.objectives.dpo:DPO",
}


def objective_class(name: str) -> type[Objective]:
    """The objective called `name`: built in, an entry point, or `module:Class`."""
    return find("objective", name, OBJECTIVES, Objective)
