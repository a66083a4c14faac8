"""Balance inside groups of rewards first, then between the groups."""

from __future__ import annotations

import numpy as np

from ._linalg import Array
from ._rule import GramRule, Weights

# A group whose members cancel to this has no direction of its own to offer.
_CANCELLED = 1e-7


def grouped_weights(
    rule: GramRule, gram: Array, preference: Array, group: Array
) -> tuple[Weights, Array]:
    """Weights of a two-level balance, and which rewards took part.

    In each group the rule combines the members: d_G = Σ_{k∈G} α_k g_k. The group directions (made
    unit vectors where the rule normalises) are then balanced by the same rule, each with the mean
    preference of its members, and α_k = a_G α_k / ‖d_G‖. Ten near-duplicates in one group count
    like one reward. A group whose members cancel has no direction: it takes no part.
    """
    labels = np.unique(group)
    mix = np.zeros((len(labels), len(gram)))
    gaps = []
    for row, label in enumerate(labels):
        members = np.flatnonzero(group == label)
        inner = preference[members] / preference[members].mean()
        answer = rule.weights(gram[np.ix_(members, members)], inner)
        mix[row, members] = answer.alpha
        gaps.append(answer.gap)
    lengths = np.sqrt(np.maximum(np.einsum("ik,kl,il->i", mix, gram, mix), 0.0))
    parts = np.abs(mix) @ np.sqrt(np.diagonal(gram))
    alive = lengths > _CANCELLED * parts
    took_part = np.isin(group, labels[alive])
    if not alive.any():
        return Weights(np.full(len(gram), 1.0 / len(gram)), 0.0), took_part
    mix = mix[alive] / lengths[alive, None] if rule.normalise else mix[alive]
    importance = np.array([preference[group == label].mean() for label in labels[alive]])
    answer = rule.weights(mix @ gram @ mix.T, importance / importance.mean())
    gaps.append(answer.gap)
    known = [gap for gap in gaps if gap is not None]
    return Weights(answer.alpha @ mix, max(known, default=None), answer.info), took_part
