"""Rewards to advantages: per reward, per prompt group, NaN where a reward does not apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from marble.errors import MarbleError, RewardError


class Counts(NamedTuple):
    """Per reward [K]: samples it applies to, samples in groups it tells apart, |A| > A_max."""

    valid: Tensor
    informative: Tensor
    clipped: Tensor


class Advantages(NamedTuple):
    adv_KN: Tensor
    """Advantages in fp64, not clamped; NaN = the reward does not apply to the sample."""
    valid_KN: Tensor
    counts_K: Counts


class Gathered(NamedTuple):
    rewards_KN: Tensor
    group_N: Tensor
    index_N: Tensor
    """Sample indices of all ranks, ascending."""
    local_n: Tensor
    """Where this rank's samples are: ``rewards_KN[:, local_n]`` are the ones it put in."""


def advantages(
    rewards_KN: Tensor | np.ndarray,
    group_N: Tensor | np.ndarray | Sequence[int],
    *,
    std: Literal["batch", "group"] = "batch",
    a_max: float = 5.0,
    eps: float = 1e-4,
    names: Sequence[str] | None = None,
) -> Advantages:
    """``A_ki = (R_ki − mean of the group) / (σ_k + eps)``; `a_max` only counts how many are larger.

    σ_k is the (population) standard deviation over all valid samples of reward k (``batch``)
    or over the sample's own group (``group``). Only valid samples enter means and deviations.
    A group in which all valid rewards are equal, a group of one included, has A = 0 and counts
    as uninformative. A reward that applies nowhere gives NaN throughout and zero counts.
    """
    rewards = torch.as_tensor(rewards_KN).detach().to(torch.float64)
    group = torch.as_tensor(group_N).to(rewards.device)
    _check(rewards, group, std, a_max, names)

    valid = ~rewards.isnan()
    known = torch.where(valid, rewards, 0.0)
    group = torch.unique(group, return_inverse=True)[1].expand_as(rewards)
    groups = int(group.max()) + 1 if group.numel() else 0

    def per_group(values: Tensor, reduce: str, start: float = 0.0) -> Tensor:
        out = torch.full((len(rewards), groups), start, dtype=values.dtype, device=values.device)
        return out.scatter_reduce(1, group, values, reduce).gather(1, group)

    size = per_group(valid.to(torch.float64), "sum").clamp_min(1)
    centred = known - per_group(known, "sum") / size
    lowest = per_group(torch.where(valid, rewards, torch.inf), "amin", torch.inf)
    highest = per_group(torch.where(valid, rewards, -torch.inf), "amax", -torch.inf)
    informative = valid & (highest > lowest)
    # Rounding in the mean of equal rewards must not become an advantage.
    centred = torch.where(informative, centred, 0.0)
    if std == "group":
        deviation = (per_group(centred.square(), "sum") / size).sqrt()
    else:
        total = valid.sum(1, keepdim=True).clamp_min(1)
        around = torch.where(valid, known - known.sum(1, keepdim=True) / total, 0.0)
        deviation = (around.square().sum(1, keepdim=True) / total).sqrt()

    adv = torch.where(valid, centred / (deviation + eps), torch.nan)
    counts = Counts(
        valid.sum(1), informative.sum(1), (torch.where(valid, adv, 0.0).abs() > a_max).sum(1)
    )
    return Advantages(adv, valid, counts)


def gather_rewards(
    rewards_Kn: Tensor | np.ndarray,
    group_n: Tensor | np.ndarray | Sequence[int],
    index_n: Tensor | np.ndarray | Sequence[int],
    process_group: dist.ProcessGroup | None = None,
) -> Gathered:
    """All ranks' rewards, sorted by sample index, so that nothing depends on the rank count.

    Ranks may hold different numbers of samples, or none. Without a process group it only sorts.
    """
    rewards = torch.as_tensor(rewards_Kn).detach().to(torch.float64)
    group = torch.as_tensor(group_n).to(rewards.device, torch.int64)
    index = torch.as_tensor(index_n).to(rewards.device, torch.int64)
    if rewards.dim() != 2 or not group.shape == index.shape == rewards.shape[1:]:
        raise MarbleError(
            f"gather_rewards: rewards {tuple(rewards.shape)}, group {tuple(group.shape)}, index "
            f"{tuple(index.shape)}; give [K, n], [n] and [n]."
        )
    mine = index
    if dist.is_available() and dist.is_initialized():
        device = _transport_device(process_group, rewards.device)
        rewards = _gather_columns(rewards.to(device), process_group).to(rewards.device)
        ids = _gather_columns(torch.stack([group, index]).to(device), process_group)
        group, index = ids.to(mine.device).unbind(0)
    index, order = index.sort()
    if index.numel() and bool((index[1:] == index[:-1]).any()):
        twice = int(index[1:][index[1:] == index[:-1]][0])
        raise MarbleError(
            f"gather_rewards: sample index {twice} occurs twice; every sample of the step needs "
            "its own index over all ranks (do not pad the sampler with repeats)."
        )
    local = torch.searchsorted(index, mine)
    return Gathered(rewards[:, order], group[order], index, local)


def _gather_columns(columns: Tensor, process_group: dist.ProcessGroup | None) -> Tensor:
    """Concatenates [R, n_rank] over ranks; ranks pad to the longest, collectives need one shape."""
    world = dist.get_world_size(process_group)
    size = torch.tensor([columns.shape[1]], device=columns.device)
    sizes = [torch.empty_like(size) for _ in range(world)]
    dist.all_gather(sizes, size, group=process_group)
    lengths = [int(s) for s in sizes]
    padded = columns.new_zeros(columns.shape[0], max(lengths))
    padded[:, : columns.shape[1]] = columns
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded, group=process_group)
    return torch.cat([part[:, :n] for part, n in zip(parts, lengths)], dim=1)


def _transport_device(
    process_group: dist.ProcessGroup | None, preferred: torch.device
) -> torch.device:
    """NCCL moves only CUDA tensors; rewards usually live on the CPU."""
    if preferred.type == "cpu" and "nccl" in dist.get_backend(process_group):
        return torch.device("cuda", torch.cuda.current_device())
    return preferred


def _check(
    rewards: Tensor, group: Tensor, std: str, a_max: float, names: Sequence[str] | None
) -> None:
    if rewards.dim() != 2:
        raise MarbleError(
            f"advantages: rewards have shape {tuple(rewards.shape)}; give [K rewards, N samples]."
        )
    if group.shape != rewards.shape[1:] or group.is_floating_point():
        raise MarbleError(
            f"advantages: group ids are {group.dtype} of shape {tuple(group.shape)}; give one "
            f"integer per sample, shape ({rewards.shape[1]},)."
        )
    if names is not None and len(names) != len(rewards):
        raise MarbleError(f"advantages: {len(names)} names for {len(rewards)} rewards.")
    if std not in ("batch", "group"):
        raise MarbleError(f"advantages: unknown std {std!r}; use 'batch' or 'group'.")
    if not a_max > 0:
        raise MarbleError(f"advantages: a_max must be positive, got {a_max}.")
    infinite = rewards.isinf()
    if bool(infinite.any()):
        k, i = (int(x) for x in infinite.nonzero()[0])
        name = repr(names[k]) if names is not None else f"number {k}"
        raise RewardError(
            f"Reward {name} is {float(rewards[k, i])} for sample {i} of the step; a reward must "
            "be finite, or NaN where it does not apply."
        )
