"""Samples with all that the balance knows of them: advantages per reward, and merged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from marble.advantage import Advantages, advantages


@dataclass(frozen=True)
class Batch:
    """N samples of an epoch, or the part of them that one optimiser step takes."""

    adv: Advantages
    merged_N: Tensor
    """One advantage per sample, of the rewards summed (NaN where none applies)."""
    means_K: np.ndarray
    """Mean score of the valid samples, NaN where there is none; of the whole epoch."""
    stds_K: np.ndarray
    prefer_KN: Tensor | None = None
    """How much each reward counts for each sample, on top of the method's coefficients."""
    seen_KN: Tensor | None = None
    """Advantages that rules observe, where these are of more samples than are trained on."""

    @property
    def size(self) -> int:
        return self.adv.adv_KN.shape[1]

    def select(self, index: Tensor) -> Batch:
        """The samples at `index`; their advantages stay those of the whole epoch."""
        a = self.adv
        part = Advantages(a.adv_KN[:, index], a.valid_KN[:, index], a.counts_K)
        prefer = None if self.prefer_KN is None else self.prefer_KN[:, index]
        return replace(self, adv=part, merged_N=self.merged_N[index], prefer_KN=prefer)

    def seen(self) -> Batch:
        """The same samples, whose advantages are all observed whichever are selected."""
        return replace(self, seen_KN=self.adv.adv_KN)

    def asking(self, adv_KN: Tensor) -> Batch:
        """The same samples with something else in place of their advantages."""
        if adv_KN is self.adv.adv_KN:
            return self
        adv = Advantages(adv_KN, ~adv_KN.isnan(), self.adv.counts_K)
        return replace(self, adv=adv, merged_N=adv_KN.nanmean(0))


def make_batch(
    rewards_KN: Tensor | np.ndarray,
    group_N: Tensor | np.ndarray,
    *,
    names: list[str],
    weights_K: Tensor,
    merge: str = "rewards",
    std: str = "batch",
    a_max: float = 5.0,
    prefer_KN: Tensor | np.ndarray | None = None,
) -> Batch:
    """Advantages per reward, and merged as `merge` says.

    rewards: Σ_k w_k R_k over the applicable rewards, then one advantage of the sum.
    advantages: Σ_k w_k A_k over the applicable rewards, then divided by its own std over the batch.
    """
    rewards = torch.as_tensor(rewards_KN).detach().to("cpu", torch.float64)
    group_N = torch.as_tensor(group_N).cpu()
    adv = advantages(rewards, group_N, std=std, a_max=a_max, names=names)  # type: ignore[arg-type]
    weights = weights_K.to(rewards)[:, None]
    applies = adv.valid_KN.any(0)
    if merge == "advantages":
        total = torch.where(adv.valid_KN, adv.adv_KN, 0.0).mul(weights).sum(0)
        spread = total[applies].std(correction=0) if bool(applies.any()) else total.new_ones(())
        merged = torch.where(applies, total / (spread + 1e-4), torch.nan)
    else:
        total = torch.where(adv.valid_KN, rewards, 0.0).mul(weights).sum(0)
        total = torch.where(applies, total, torch.nan)
        merged = advantages(total[None], group_N, std=std, a_max=a_max).adv_KN[0]  # type: ignore[arg-type]
    known = torch.where(adv.valid_KN, rewards, 0.0)
    count = adv.valid_KN.sum(1).to(torch.float64)
    means = known.sum(1) / count
    spread_K = torch.where(adv.valid_KN, rewards - means[:, None], 0.0).square().sum(1) / count
    prefer = None if prefer_KN is None else torch.as_tensor(prefer_KN).to(rewards)
    return Batch(adv, merged, means.numpy(), spread_K.sqrt().numpy(), prefer)
