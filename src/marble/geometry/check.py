"""Whether the model measured is the one that the run trained.

A run folder names its base model and rewards, it does not hold them. Where they have changed since,
a LoRA sits on weights it was not made for; the scores of the pictures drawn tell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FAR = 4.0
"""Mean scores so many standard deviations (of one batch's mean) apart are not the same model's."""


def compare_scores(names: list[str], here_BK: np.ndarray, run_SK: np.ndarray) -> dict[str, Any]:
    """By reward: the mean score here, that of the run at this place, and whether they differ."""
    found = {}
    for name, here, run in zip(names, here_BK.T, run_SK.T):
        here, run = here[np.isfinite(here)], run[np.isfinite(run)]
        enough = len(here) > 1 and len(run) > 1
        spread = max(here.std(ddof=1), run.std(ddof=1)) if enough else np.nan
        a, b = (part.mean() if len(part) else np.nan for part in (here, run))
        found[name] = {
            "here": a,
            "run": b,
            "one_batch_std": spread,
            "differs": bool(abs(a - b) > FAR * spread + 1e-9),
        }
    return found


def warning(scores: dict[str, Any]) -> str | None:
    """One line where the scores are not the run's."""
    odd = [
        f"{name} {entry['here']:.3g} (run: {entry['run']:.3g})"
        for name, entry in scores.items()
        if entry["differs"]
    ]
    if not odd:
        return None
    return (
        f"the pictures score unlike the run's own: {', '.join(odd)}. Have the base model or the "
        "rewards changed since? Then these numbers say nothing about that run."
    )
