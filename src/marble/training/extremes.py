"""Training on the extremes of a group: the pictures of a prompt whose advantages are largest.

A picture near its group's mean says little and costs as much as any other. Advantages are computed
over all pictures, as ever; only the (sample, timestep) pairs that are trained on become fewer. The
update is then another one than of all pictures: `marble bench options` measures by how much.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from marble.balance import Batch
from marble.recipe.sections import kept_of
from marble.rewards.groups import members


def sizes(batch: Batch, active_K: np.ndarray, *, merged: bool) -> np.ndarray:
    """How far each sample is from its group's mean, [N]: |A| of the rewards' sum where the method
    trains on that (`merged`), else |Σ_k A_k|, each times its preference, over the rewards that
    apply and take part.

    The sum, because opposed advantages cancel in the update too: chosen by the largest |A_k|, half
    of the pictures gave an update further from that of all (random rewards, the studio).
    """
    if merged:
        return _known(batch.merged_N.abs())
    found = batch.adv.adv_KN
    if batch.prefer_KN is not None:
        found = found * batch.prefer_KN
    return np.abs(_known(found)[active_K].sum(0))


def extremes(
    size_N: np.ndarray, group_N: Sequence[int], share: float, *, together: int = 1
) -> np.ndarray:
    """Positions of the samples to train on, ascending: of every group the `share` of largest size,
    rounded up. Equal ones in the order of their positions.

    together: so many consecutive samples of a group stay or go as one, by the largest of them.
    """
    kept: list[int] = []
    for group in members(group_N):
        units = [group[i : i + together] for i in range(0, len(group), together)]
        count = kept_of(len(units), share)
        order = sorted(range(len(units)), key=lambda u: (-max(size_N[i] for i in units[u]), u))
        kept += [i for u in order[:count] for i in units[u]]
    return np.array(sorted(kept), dtype=np.int64)


def _known(values: Tensor) -> np.ndarray:
    return np.nan_to_num(values.cpu().numpy(), nan=0.0)
