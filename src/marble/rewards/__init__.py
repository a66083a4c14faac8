"""Rewards: pictures, prompts and metadata in, scores or NaN out.

scores_KN = RewardSet([load("studio-clip"), load("ocr", sources=["ocr"])]).score(
    images, prompts, metadata
)
"""

from marble.rewards.base import FunctionReward, Reward, RewardLike, as_reward
from marble.rewards.groups import groupwise, pairwise
from marble.rewards.registry import REGISTRY, check, load, names
from marble.rewards.set import Outcome, RewardSet

__all__ = [
    "REGISTRY",
    "FunctionReward",
    "Outcome",
    "Reward",
    "RewardLike",
    "RewardSet",
    "as_reward",
    "check",
    "groupwise",
    "load",
    "names",
    "pairwise",
]
