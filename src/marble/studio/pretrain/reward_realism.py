"""Trains the studio's held-out realism score: 1 − severity of the damage a picture has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from marble.rewards.realism import RealismNet

from .common import Budget, autocast, batches, cosine_lr
from .reward_clip import Disturb, damage_of
from .reward_data import Pictures
from .reward_look import mild, spoil


def collage(x: Tensor) -> Tensor:
    """Halves of two pictures side by side: locally clean, as a whole wrong."""
    side = x.shape[-1]
    cut = torch.randint(side // 4, 3 * side // 4, (len(x), 1, 1, 1), device=x.device)
    axis = torch.arange(side, device=x.device)
    across = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    mask = torch.where(across, axis.view(1, 1, 1, -1) < cut, axis.view(1, 1, -1, 1) < cut)
    return torch.where(mask, x, x.roll(1, 0))


def train_realism(
    train: Pictures,
    budget: Budget,
    *,
    disturb: Disturb = None,
    batch: int = 512,
    peak_lr: float = 2e-3,
    seed: int = 51,
) -> RealismNet:
    device = train.device
    torch.manual_seed(seed)
    model = RealismNet().to(device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=peak_lr, weight_decay=0.01, fused=device.type == "cuda"
    )
    for step, index in enumerate(batches(len(train), batch, seed, device)):
        done = budget.fraction(step)
        if done >= 1:
            break
        cosine_lr(optimiser, peak_lr, step, done)
        clean = train.clean(index)
        third = max(1, len(index) // 3)
        severity = torch.rand(len(clean), device=device)
        damage = damage_of(severity)
        x = mild(spoil(clean, severity, disturb))
        x = torch.cat([mild(clean), x, mild(collage(clean[:third]))])
        goal = torch.cat(
            [torch.ones_like(damage), 1 - damage, torch.full_like(damage[:third], 0.3)]
        )
        with autocast(device):
            logit = model(x * 2 - 1)
        loss = F.binary_cross_entropy_with_logits(logit.float(), goal)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        if step % 500 == 0:
            print(f"realism {step:6d}  {done:4.0%}  loss {loss.item():.4f}", flush=True)
    return model.eval()
