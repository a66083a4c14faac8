"""The moving average of α."""

from __future__ import annotations

import numpy as np

from ._linalg import Array


def update_ema(ema: Array, alpha: Array, active: Array, rho: float) -> Array:
    """ᾱ_k ← ρᾱ_k + (1−ρ)·m·α_k for the active rewards; the others keep ᾱ_k exactly.

    m = Σ_active ᾱ is the mass the active rewards hold between them, so that Σᾱ stays 1 without
    touching a silent reward. Where they hold none (all of it rests with silent rewards), they
    get the mass they would have had under equal weights, and the silent ones give way.
    """
    mass = float(ema[active].sum())
    updated = ema.copy()
    if mass <= 1e-12:
        mass = float(active.mean())
        updated = ema * (1.0 - mass)
        updated[active] = mass * alpha[active]
    else:
        updated[active] = rho * ema[active] + (1.0 - rho) * mass * alpha[active]
    return np.asarray(updated / updated.sum())
