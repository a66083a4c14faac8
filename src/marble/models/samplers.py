"""Deterministic samplers for flow matching, on a grid of float noise levels σ_0 > … > σ_T = 0.

x_σ = (1−σ)·x_0 + σ·ε and the model gives v = ε − x_0, so x̂_0 = x_σ − σ·v. Both samplers see the
model at exactly the σ of the grid; nothing is rounded to integer timesteps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from marble.errors import MarbleError

Velocity = Callable[[Tensor, Tensor], Tensor]
"""(x_σ [B, …], σ [B]) → v [B, …]"""
Sampler = Callable[[Velocity, Tensor, Sequence[float]], Tensor]
"""(velocity, noise [B, …], σ_0 … σ_T) → x_0"""


def sample_ode(
    sampler: str | Sampler, velocity: Velocity, noise: Tensor, sigmas: Sequence[float]
) -> Tensor:
    """x_0 from pure `noise` by the sampler of that name (or the sampler itself), in float32."""
    if not isinstance(sampler, str):
        return sampler(velocity, noise.float(), [float(s) for s in sigmas])
    if sampler not in SAMPLERS:
        raise MarbleError(f"unknown sampler '{sampler}'; known: {', '.join(SAMPLERS)}")
    return SAMPLERS[sampler](velocity, noise.float(), [float(s) for s in sigmas])


def euler(velocity: Velocity, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """x ← x + (σ' − σ)·v."""
    for sigma, following in pairwise(sigmas):
        x = x + (following - sigma) * _at(velocity, x, sigma)
    return x


MOST_GROWTH = 1 + math.sqrt(2)


def dpm_solver_pp_2m(velocity: Velocity, x: Tensor, sigmas: Sequence[float]) -> Tensor:
    """DPM-Solver++ 2M (midpoint form) with α = 1−σ, λ = log(α/σ), h = λ' − λ:

    x ← (σ'/σ)·x − α'·(e^{−h} − 1)·(x̂ + ½·(h/h_prev)·(x̂ − x̂_prev))

    Where λ is infinite (σ = 1 and σ = 0) the formula has a limit: h/h_prev → 0 after the start,
    so that step is of first order, and the last step, of first order too, returns x̂ itself.
    A step that grows by more than 1+√2, the stability limit of variable two-step methods, is of
    first order as well. Flow-matching grids end in such a step (σ = .28 → .009 → 0 at 10 steps and
    shift 3), and extrapolating over it costs more than all the second order gains.
    """
    previous: Tensor | None = None
    h_previous = 0.0
    for sigma, following in pairwise(sigmas):
        clean = x - sigma * _at(velocity, x, sigma)
        h = _log_snr(following) - _log_snr(sigma)
        target = clean
        if previous is not None and h <= MOST_GROWTH * h_previous < math.inf:
            target = clean + (0.5 * h / h_previous) * (clean - previous)
        x = (following / sigma) * x - (1 - following) * math.expm1(-h) * target
        previous, h_previous = clean, h
    return x


SAMPLERS = {"dpm": dpm_solver_pp_2m, "euler": euler}


def _log_snr(sigma: float) -> float:
    if sigma <= 0:
        return math.inf
    return -math.inf if sigma >= 1 else math.log((1 - sigma) / sigma)


def _at(velocity: Velocity, x: Tensor, sigma: float) -> Tensor:
    level = torch.full((len(x),), sigma, dtype=torch.float32, device=x.device)
    return velocity(x, level).float()
