"""Rewards that want the opposite of each other."""

from __future__ import annotations

import numpy as np

from ._linalg import Array

OPPOSED = -0.9
"""Cosine of two gradients below which there is little room for a step that helps both. Noise brings
cosines nearer to 0: what is measured below this is below it."""
OPPOSITE = -0.99
"""The same, below which there is none: the point of least norm between the two is 0.07 of their
length, or less."""


def opposed_pairs(cos_KK: Array, below: float = OPPOSED) -> list[tuple[int, int]]:
    """Pairs of rewards that cancel out, the most opposed first; a reward is in one pair at most.

    NaN, where two rewards were never measured together, is no opposition.
    """
    cos = np.where(np.triu(np.ones_like(cos_KK, dtype=bool), 1), cos_KK, np.nan)
    pairs: list[tuple[int, int]] = []
    for place in np.argsort(cos, axis=None):  # NaN comes last
        i, j = (int(at) for at in np.unravel_index(place, cos.shape))
        if not cos[i, j] < below:
            break
        if not any(one in pair for pair in pairs for one in (i, j)):
            pairs.append((i, j))
    return pairs
