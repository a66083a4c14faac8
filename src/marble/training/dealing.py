"""Who draws which pictures: samples dealt to processes, and batches of them to the rewards.

Samples are dealt like cards, so that shares differ by one at most. Where a reward compares the
pictures of a prompt, whole groups are dealt instead: a group is scored where all of it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from marble.data import Sample
from marble.rewards.groups import members


def shares(
    samples: Sequence[Sample],
    size: int,
    *,
    whole_groups: bool,
    together: int = 1,
    even: bool = False,
) -> list[list[int]]:
    """Positions of the samples of each of `size` processes.

    So many consecutive samples as `together` says are dealt as one (an objective of pairs: 2).

    With `even`, processes that would be left with fewer draw the first ones again: with a sharded
    model all must draw equally often. A share's own positions come before such repeats.
    """
    count = len(samples)
    units = [list(range(i, min(i + together, count))) for i in range(0, count, together)]
    if whole_groups:
        units = members([s.group for s in samples])
    count = len(units)
    if even and units:
        units = units + [units[i % count] for i in range(-count % size)]
    return [[i for unit in units[rank::size] for i in unit] for rank in range(size)]


def batches(samples: Sequence[Sample], size: int, *, whole_groups: bool) -> list[slice]:
    """Runs of about `size` samples to score together.

    With `whole_groups` a run ends where a group does: at the first end of a group at or after
    `size` samples. The samples of a group lie side by side.
    """
    cuts = [0]
    for i in range(1, len(samples) + 1):
        last = i == len(samples)
        ends = last or not whole_groups or samples[i].group != samples[i - 1].group
        if ends and (last or i - cuts[-1] >= size):
            cuts.append(i)
    return [slice(a, b) for a, b in pairwise(cuts)]
