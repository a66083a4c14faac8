"""The rewards by themselves: time of a batch, and what batch size and device do to a score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marble.recipe import Recipe
from marble.rewards import load
from marble.rewards.base import RewardLike
from marble.training import setup
from sd35m_meter import Meter

CLIP_FAMILY = ("pickscore", "clipscore", "hpsv2", "aesthetic")
META: dict[str, Any] = {
    "source": "geneval",
    "tag": "single_object",
    "include": [{"class": "dog", "count": 1}],
    "prompt": 'a dog and "TEA"',
}


def pictures(recipe: Recipe, count: int) -> Tensor:
    """Smooth random pictures of the recipe's size: noise all looks the same to a CLIP."""
    side = recipe.model.resolution or 64
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")
    return (smooth.clamp(0, 1) * 255).to(torch.uint8)


def score(reward: RewardLike, images: Tensor) -> Tensor:
    n = len(images)
    return torch.as_tensor(reward.score(images, [META["prompt"]] * n, [META] * n)).double().cpu()


def rewards_alone(recipe: Recipe, meter: Meter, device: torch.device, count: int) -> dict[str, Any]:
    """Each reward on one rollout batch, after a first call; mean and spread of its scores."""
    out = {}
    sets = setup.build_rewards(recipe, device)
    for reward in (r for group in sets if group for r in group.rewards):
        for warm in (True, False):
            with meter(f"reward {reward.name}, {'first call' if warm else f'{count} pictures'}"):
                scores = score(reward, pictures(recipe, count))
        out[reward.name] = {"mean": float(scores.mean()), "std": float(scores.std())}
    return out


def invariance(recipe: Recipe, device: torch.device, count: int) -> dict[str, Any]:
    """Largest change of a CLIP-family score in a batch of one, and on the CPU; by precision.

    PickScore is a cosine times its logit scale, and its changes are that much larger: 14 in
    random weights, about 100 in the published ones.
    """
    images = pictures(recipe, count)
    out: dict[str, Any] = {}
    for entry in (*recipe.rewards.train, *recipe.rewards.heldout):
        if entry.reward not in CLIP_FAMILY:
            continue
        for dtype in ("fp32", "bf16"):
            options = {**entry.options, "dtype": dtype}
            reward = load(entry.reward, device=device, **options)
            together = score(reward, images)
            alone = torch.cat([score(reward, image[None]) for image in images])
            found = {
                "std": float(together.std()),
                "alone": float((alone - together).abs().max()),
            }
            if device.type != "cpu":
                elsewhere = score(load(entry.reward, device="cpu", **options), images)
                found["on_cpu"] = float((elsewhere - together).abs().max())
            out[f"{entry.name}, {dtype}"] = found
            del reward
    return out
