"""DiffusionNFT with one or two rewards in plain torch: what the loop must do, written apart.

Only the model (its forward, its decoder, its prompt encoding) is marble's. Losses go through
autograd, one reward at a time; the two-reward min-norm point is in closed form; AdamW is torch's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

A_MAX, BETA = 5.0, 0.1


@dataclass
class Reference:
    """State of the run and what each step found."""

    adapter: Any
    lr: float
    clip: float
    kl: float
    steps: int
    """Sampling steps."""
    pairs: int
    """Timesteps each sample is trained on."""
    seed: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = self.adapter.lora_parameters("default")
        self.ema = {k: v.detach().clone() for k, v in self.live.items()}
        self.optimizer = torch.optim.AdamW(
            list(self.live.values()), lr=self.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-4
        )
        self.alpha_bar = None

    # -- data ---------------------------------------------------------------------------------

    def rollout(self, samples) -> tuple[torch.Tensor, torch.Tensor]:
        """Euler's method from each sample's own noise, under v_old."""
        sigmas = self.adapter.grid(self.steps)
        latents = []
        with torch.no_grad(), self.adapter.using("old"):
            for sample in samples:
                noise = torch.Generator().manual_seed(sample.seed)
                x = torch.randn((1, *self.adapter.latent_shape), generator=noise)
                cond = self.adapter.encode([sample.prompt.text])
                for now, after in pairwise(sigmas):
                    x = x + (after - now) * self.adapter.velocity(x, now[None], cond)
                latents.append(x)
        x_0 = torch.cat(latents)
        return x_0, self.adapter.decode(x_0)

    def pairs_of(self, samples, inner: int = 0):
        """(sample position, noise level, noise) for every trained pair, by the documented seeds."""
        sigmas = self.adapter.grid(self.steps)[:-1]
        for i, sample in enumerate(samples):
            rng = np.random.default_rng([self.seed, sample.index, inner, 0x71])
            for j, level in enumerate(rng.permutation(len(sigmas))[: self.pairs]):
                key = np.random.SeedSequence([self.seed, sample.index, inner, j, 0x9E])
                state = int(key.generate_state(1, np.uint64)[0] >> 1)
                generator = torch.Generator().manual_seed(state)
                noise = torch.randn(self.adapter.latent_shape, generator=generator)
                yield i, sigmas[int(level)], noise

    # -- a step -------------------------------------------------------------------------------

    def step(self, samples, rewards_KN: np.ndarray, *, refresh: bool, rho: float = 0.7) -> None:
        """One optimiser step on the samples; with two rewards, MARBLE's, else plain NFT."""
        x_0, _ = self.rollout(samples)
        groups = np.array([s.group for s in samples])
        adv = np.stack([advantage(row, groups) for row in rewards_KN])
        r = np.clip(0.5 + adv / (2 * A_MAX), 0.0, 1.0)
        losses, kl = self._losses(samples, x_0, r)
        parameters = list(self.live.values())
        g = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        entry: dict[str, Any] = {"adv": adv, "kl": float(kl.detach())}
        if len(losses) == 1:
            c = np.array([1.0])
        elif refresh:
            alpha, c, entry["norms"], entry["cos"] = two_rewards(g)
            before = np.array([0.5, 0.5]) if self.alpha_bar is None else self.alpha_bar
            self.alpha_bar = rho * before + (1 - rho) * alpha
            entry["alpha_raw"], entry["alpha"] = alpha, self.alpha_bar
        else:
            c = entry["alpha"] = self.alpha_bar
        outside = torch.autograd.grad(self.kl * kl, parameters)
        for i, p in enumerate(parameters):
            p.grad = sum(float(c_k) * g_k[i] for c_k, g_k in zip(c, g)) + outside[i]
        entry["c"] = c
        entry["loss"] = float(sum(float(c_k) * loss.detach() for c_k, loss in zip(c, losses)))
        entry["norm"] = float(torch.nn.utils.clip_grad_norm_(parameters, self.clip))
        self.optimizer.step()
        n = len(self.log) + 1
        decay = min((1 + n) / (10 + n), 0.9)
        with torch.no_grad():
            for name, value in self.ema.items():
                value.copy_(decay * value + (1 - decay) * self.live[name])
        self.log.append(entry)

    def follow(self, decay: float) -> None:
        with torch.no_grad():
            for name, old in self.adapter.lora_parameters("old").items():
                old.copy_(decay * old + (1 - decay) * self.live[name])

    def _losses(self, samples, x_0, r) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Mean over each reward's valid pairs of r·L⁺ + (1−r)·L⁻, and the mean KL."""
        sums, counts = [torch.zeros(()) for _ in r], [0] * len(r)
        kl, total = torch.zeros(()), 0
        for i, sigma, noise in self.pairs_of(samples):
            cond = self.adapter.encode([samples[i].prompt.text])
            target = x_0[i]
            x_t = ((1 - sigma) * target + sigma * noise)[None]
            with torch.no_grad():
                with self.adapter.using("old"):
                    v_old = self.adapter.velocity(x_t, sigma[None], cond)
                with self.adapter.using("base"):
                    v_ref = self.adapter.velocity(x_t, sigma[None], cond)
            with self.adapter.using("default"):
                v = self.adapter.velocity(x_t, sigma[None], cond)
            plus, minus = (
                side(x_t - sigma * (w * v + (1 - w) * v_old) - target) for w in (BETA, -BETA)
            )
            for k, row in enumerate(r):
                if not np.isnan(row[i]):
                    sums[k] = sums[k] + float(row[i]) * plus + float(1 - row[i]) * minus
                    counts[k] += 1
            kl, total = kl + (v - v_ref).square().mean(), total + 1
        return [A_MAX / BETA * s / n for s, n in zip(sums, counts)], kl / total


def side(error: torch.Tensor) -> torch.Tensor:
    """mean(e²)/w with the adaptive weight w = mean|e|, which is not differentiated."""
    return error.square().mean() / error.detach().abs().mean().clamp_min(1e-5)


def advantage(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Distance to the group's mean in standard deviations over the epoch; NaN does not apply."""
    out = np.full(len(rewards), np.nan)
    spread = np.nanstd(rewards) + 1e-4
    for group in np.unique(groups):
        members = (groups == group) & ~np.isnan(rewards)
        if members.any():
            out[members] = (rewards[members] - rewards[members].mean()) / spread
    return out


def two_rewards(g) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Two unit vectors: the min-norm point of the segment between them is its middle."""
    flat = [torch.cat([part.flatten() for part in one]).double() for one in g]
    norms = np.array([float(one.norm()) for one in flat])
    u, v = flat[0] / norms[0], flat[1] / norms[1]
    # argmin over a of |a·u + (1−a)·v|² is (v·v − u·v) / |u − v|², kept inside [0, 1].
    a = float(((v @ v) - (u @ v)) / (u - v).square().sum())
    alpha = np.array([min(max(a, 0.0), 1.0), 1 - min(max(a, 0.0), 1.0)])
    return alpha, alpha * norms.mean() / norms, norms, float(u @ v)
