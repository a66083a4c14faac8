"""Means over seeds with intervals, paired differences, and whether seeds agree on the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata, t


def over_seeds(values: ArrayLike, level: float = 0.95) -> dict[str, float | int]:
    """Mean, Student-t interval and number of the finite values; one value has no interval."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    n = len(known)
    mean = float(known.mean()) if n else float("nan")
    half = float("nan")
    if n > 1:
        half = float(t.ppf(0.5 + level / 2, n - 1) * known.std(ddof=1) / np.sqrt(n))
    return {"mean": mean, "lo": mean - half, "hi": mean + half, "n": n}


def paired(first: dict[int, float], second: dict[int, float]) -> dict[str, float | int]:
    """first − second over the seeds both have, which share initial weights and evaluation."""
    common = sorted(set(first) & set(second))
    return over_seeds([first[seed] - second[seed] for seed in common])


def agreement(by_name: dict[str, dict[int, float]]) -> dict[str, Any]:
    """Do seeds rank the names alike (the highest value is rank 1)? {} where there is no asking.

    Kendall's W = 12 S / (m²(n³ − n)) for m seeds and n names, S the squared deviations of rank
    sums: 1 if all seeds give the same order, about 1/m for orders that have nothing in common.
    The mean Spearman correlation of two seeds is (mW − 1)/(m − 1).
    Only seeds that every name has, with a finite value, are counted.
    """
    names = list(by_name)
    seeds = _complete(by_name)
    m, n = len(seeds), len(names)
    if m < 2 or n < 3:
        return {}
    ranks = np.array([rankdata([-by_name[name][seed] for name in names]) for seed in seeds])
    total = ranks.sum(axis=0)
    w = float(12 * ((total - total.mean()) ** 2).sum() / (m**2 * (n**3 - n)))
    winners = [names[int(i)] for i in ranks.argmin(axis=1)]
    first = max(dict.fromkeys(winners), key=winners.count)
    return {
        "kendall_w": w,
        "mean_spearman": (m * w - 1) / (m - 1),
        "seeds": m,
        "first": first,
        "first_in": winners.count(first),
        "mean_rank": {name: float(r) for name, r in zip(names, ranks.mean(axis=0))},
    }


def _complete(by_name: dict[str, dict[int, float]]) -> Sequence[int]:
    tables = list(by_name.values())
    common = set.intersection(*(set(table) for table in tables)) if tables else set()
    return sorted(s for s in common if all(np.isfinite(table[s]) for table in tables))
