"""Sampling with noise: Euler–Maruyama steps of the flow's reverse SDE, and their density.

The flow dx/dσ = v has the same marginals as the SDE, run from σ = 1 down,

    dx = −v dτ + ½g² s dτ + g dW,   s = ∇log p_σ(x) = −(x + (1−σ)v)/σ

for any g; here g² = a²σ/(1−σ), as in Flow-GRPO (https://arxiv.org/abs/2505.05470). A step from σ
to σ' = σ − dτ is Gaussian, with a mean that is affine in v: log-probabilities are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from marble.models.samplers import Velocity


def transition(
    x: Tensor, v: Tensor, sigma_B: Tensor, next_B: Tensor, noise: float, top: float
) -> tuple[Tensor, Tensor]:
    """(mean, std [B]) of the step from σ to σ'. `top` stands for σ in g where σ = 1 (g is infinite
    there): the grid's next level."""
    sigma, following = sigma_B.to(x), next_B.to(x)
    g2 = _squared_noise(sigma, noise, top)
    column = (-1, *[1] * (x.dim() - 1))
    s, g, dt = sigma.view(column), g2.view(column), (sigma - following).view(column)
    score = -(x + (1 - s) * v) / s
    return x - dt * v + 0.5 * g * dt * score, (g2 * (sigma - following)).sqrt()


def slope(sigma_B: Tensor, next_B: Tensor, noise: float, top: float) -> Tensor:
    """∂mean/∂v, the same for every element of a sample: −dτ(1 + g²(1−σ)/(2σ))."""
    g2 = _squared_noise(sigma_B, noise, top)
    return -(sigma_B - next_B) * (1 + g2 * (1 - sigma_B) / (2 * sigma_B))


def log_density(x: Tensor, mean: Tensor, std_B: Tensor) -> Tensor:
    """[B]: log N(x; mean, std²), summed over all elements of a sample."""
    std = std_B.view(-1, *[1] * (x.dim() - 1))
    each = -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
    return each.flatten(1).sum(1)


def _squared_noise(sigma: Tensor, noise: float, top: float) -> Tensor:
    below = torch.where(sigma < 1, sigma, torch.full_like(sigma, top))
    return noise**2 * sigma / (1 - below)


class Sde:
    """A sampler for some samples, whose noise comes from their seeds.

    window: so many steps have noise, the first ones; the others are those of Euler's method. What
        a picture is to be is decided there: later noise tells hardly any pictures apart. None: all.
    keep: remember the noisy steps, in `kept`.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        noise: float,
        window: int | None = None,
        keep: bool = False,
    ) -> None:
        self.noise, self.window, self.keep = noise, window, keep
        self._generators = [torch.Generator().manual_seed(_own_stream(seed)) for seed in seeds]
        self.kept: dict[str, Tensor] = {}
        """`path` [n, w + 1, …]: x before and after each noisy step; `noise` [n]: the level a."""

    def __call__(self, velocity: Velocity, x: Tensor, sigmas: Sequence[float]) -> Tensor:
        steps = len(sigmas) - 1
        width = min(self.window or steps, steps)
        before: list[Tensor] = []
        for number, (sigma, following) in enumerate(pairwise(sigmas)):
            before.append(x)
            level = torch.full((len(x),), sigma, dtype=torch.float32, device=x.device)
            v = velocity(x, level).float()
            if number >= width:
                x = x + (following - sigma) * v
                continue
            mean, std = transition(
                x, v, level, torch.full_like(level, following), self.noise, sigmas[1]
            )
            drawn = [torch.randn(x.shape[1:], generator=g) for g in self._generators]
            x = mean + std.view(-1, *[1] * (x.dim() - 1)) * torch.stack(drawn).to(x)
        before.append(x)
        if self.keep:
            self.kept = {
                "path": torch.stack(before[: width + 1], 1),
                "noise": torch.full((len(x),), self.noise, dtype=torch.float64),
            }
        return x


def _own_stream(seed: int) -> int:
    """Apart from the stream that the first noise comes from."""
    key = np.random.SeedSequence([seed, 0x5DE]).generate_state(1, np.uint64)
    return int(key[0] >> 1)
