"""Cells over several settings at once: who does well whatever the rewards are?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from marble.study.statistics import over_seeds, paired

Values = Mapping[str, Mapping[int, float]]
#: How a seed's values in several settings become one.
KINDS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "least": min,
}
_FEWEST = 3


def across(
    by_setting: Mapping[str, Values],
    beside: Mapping[str, Mapping[str, Values]] | None = None,
    *,
    widest: bool = False,
) -> dict[str, Any]:
    """Mean and least value of a cell over settings, seed by seed, and how far others are behind
    the best; {} where there are not two settings in which every cell has three seeds in common.
    Where some settings have fewer seeds, either they or the other seeds are left out, whichever
    leaves more runs; with `widest`, the other seeds.

    by_setting: setting → cell → seed → value.
    beside: measure → the same of another one, whose mean is told beside them.
    """
    names = list(dict.fromkeys(name for values in by_setting.values() for name in values))
    complete = {setting: _seeds(values, names) for setting, values in by_setting.items()}
    complete = {setting: seeds for setting, seeds in complete.items() if len(seeds) >= _FEWEST}
    settings, seeds = _most(complete, widest)
    if len(settings) < 2 or len(seeds) < _FEWEST or len(names) < 2:
        return {}
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in names}
    best: dict[str, str] = {}
    for kind, reduce in KINDS.items():
        found = {
            name: {seed: reduce([by_setting[s][name][seed] for s in settings]) for seed in seeds}
            for name in names
        }
        best[kind] = max(names, key=lambda name: float(np.mean(list(found[name].values()))))
        for name in names:
            rows[name][kind] = over_seeds(list(found[name].values()))
            if name != best[kind]:
                rows[name][f"{kind} behind"] = paired(found[best[kind]], found[name])
    for measure, values in (beside or {}).items():
        for name in names:
            pooled = [np.mean([values[s][name][seed] for s in settings]) for seed in seeds]
            rows[name][measure] = over_seeds([float(value) for value in pooled])
    return {"settings": settings, "seeds": seeds, "best": best, "rows": list(rows.values())}


def _most(complete: Mapping[str, set[int]], widest: bool) -> tuple[list[str], list[int]]:
    """Settings and the seeds that they have in common: the most runs, or the most settings."""
    if not complete:
        return [], []
    choices = []
    for fewest in sorted({len(seeds) for seeds in complete.values()}):
        settings = [setting for setting, seeds in complete.items() if len(seeds) >= fewest]
        choices.append((settings, sorted(set.intersection(*(complete[s] for s in settings)))))
    if widest:
        return choices[0]
    return max(choices, key=lambda c: (len(c[0]) > 1, len(c[0]) * len(c[1]), len(c[1])))


def _seeds(values: Values, names: list[str]) -> set[int]:
    """Seeds for which every one of `names` has a finite value."""
    if any(name not in values for name in names):
        return set()
    known = [{s for s, value in values[name].items() if np.isfinite(value)} for name in names]
    return set.intersection(*known)
