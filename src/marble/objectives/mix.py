"""Per-sample weights whose single backward is exactly a chosen combination of K gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from marble.errors import MarbleError


def mix(
    c_K: Tensor,
    r_KN: Tensor,
    valid_KN: Tensor | None = None,
    count_K: Tensor | None = None,
    *,
    target: str = "full",
    total: int | None = None,
) -> tuple[Tensor, Tensor]:
    """``(ρ⁺, ρ⁻)`` such that ``Σ_i ρ⁺_i L⁺_i + ρ⁻_i L⁻_i`` has gradient ``Σ_k c_k g_k``.

    With validity m and counts n, for ``target="full"`` (g_k is the mean over valid samples):
    ``ρ⁺_i = Σ_k c_k m_ki r_ki / n_k`` and ``ρ⁻_i = Σ_k c_k m_ki (1 − r_ki) / n_k``.
    It holds for any c, clamped or masked r alike.

    For ``target="reward"`` the combination is ``Σ_k c_k h_k + W``: h_k is the part driven by
    advantages and W the r = 1/2 gradient averaged over all ``total`` samples:
    ``ρ^±_i = ±Σ_k c_k m_ki (r_ki − 1/2) / n_k + 1/(2·total)``.

    ``count_K`` are the counts n_k of the whole optimiser step (all micro-batches, all ranks);
    by default they are taken from ``valid_KN``, which itself defaults to "r is not NaN".
    ``total`` defaults to the number of columns. A reward without valid samples adds nothing.
    """
    if r_KN.dim() != 2 or c_K.shape != r_KN.shape[:1]:
        raise MarbleError(
            f"mix: c has shape {tuple(c_K.shape)} and r {tuple(r_KN.shape)}; give [K] and [K, N]."
        )
    valid = ~r_KN.isnan() if valid_KN is None else valid_KN.bool()
    if valid.shape != r_KN.shape:
        raise MarbleError(
            f"mix: valid has shape {tuple(valid.shape)} and r {tuple(r_KN.shape)}; they must agree."
        )
    count = valid.sum(1) if count_K is None else count_K.to(r_KN.device)
    share = c_K.to(r_KN) / count.to(r_KN).clamp_min(1)
    weight = share[:, None] * valid
    # NaN times a zero weight would stay NaN, so inapplicable entries are replaced, not weighted.
    r = torch.where(valid, r_KN, 0.5)
    if target == "full":
        return (weight * r).sum(0), (weight * (1 - r)).sum(0)
    if target == "reward":
        pull = (weight * (r - 0.5)).sum(0)
        half = 0.5 / (r_KN.shape[1] if total is None else total)
        return half + pull, half - pull
    raise MarbleError(f"mix: unknown target {target!r}; use 'full' or 'reward'.")
