"""One evaluation as a record: a mean with its interval for every score, by source and over all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from marble.evaluation.intervals import mean_interval


def summarise(
    scores: Mapping[str, np.ndarray], sources: Sequence[str], groups: Sequence[Hashable]
) -> dict[str, dict[str, Any]]:
    """name → mean, lo, hi, n and `by_source` means (sources where it nowhere applies left out).

    `scores` are [n] with NaN where a score does not apply; `groups` names each picture's prompt.
    """
    result = {}
    for name, values in scores.items():
        values = np.asarray(values, dtype=np.float64)
        if not len(values) == len(sources) == len(groups):
            raise ValueError(f"{name}: {len(values)} scores for {len(sources)} pictures")
        by_source = {}
        for source in dict.fromkeys(sources):
            part = values[[s == source for s in sources]]
            part = part[np.isfinite(part)]
            if len(part):
                by_source[source] = float(part.mean())
        result[name] = {**mean_interval(values, groups).record(), "by_source": by_source}
    return result
