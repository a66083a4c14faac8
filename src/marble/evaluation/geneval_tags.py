"""GenEval's official figure: the mean of the six tags' means; and the plain mean over pictures.

The tags have different numbers of prompts (80 to 100 in the published set), so the two differ;
papers report the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")


def tag_scores(scores: np.ndarray, tags: Sequence[str | None]) -> dict[str, Any]:
    """`mean_over_tags` (null unless every tag was seen), `micro_average`, `n`, and `tags`.

    `scores` are [n] with NaN where GenEval does not apply; `tags` are the pictures' own.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if len(scores) != len(tags):
        raise ValueError(f"{len(scores)} scores for {len(tags)} pictures")
    by_tag: dict[str, dict[str, Any]] = {}
    for tag in TAGS:
        part = scores[[t == tag for t in tags]]
        part = part[np.isfinite(part)]
        if len(part):
            by_tag[tag] = {"mean": float(part.mean()), "n": len(part)}
    counts = [entry["n"] for entry in by_tag.values()]
    means = [entry["mean"] for entry in by_tag.values()]
    total = sum(counts)
    return {
        "mean_over_tags": float(np.mean(means)) if len(by_tag) == len(TAGS) else None,
        "micro_average": float(np.dot(means, counts) / total) if total else None,
        "n": total,
        "tags": by_tag,
    }


def geneval_record(
    scores: Mapping[str, np.ndarray], metadata: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """`tag_scores` of every GenEval reward among `scores` that met one of the tags."""
    tags = [meta.get("tag") for meta in metadata]
    found = {name: tag_scores(v, tags) for name, v in scores.items() if "geneval" in name}
    return {name: entry for name, entry in found.items() if entry["n"]}
