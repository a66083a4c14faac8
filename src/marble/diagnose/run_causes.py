"""What can be wrong with a run as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from marble.diagnose.evidence import Evidence, Floats, recent
from marble.diagnose.words import Finding, number, percent

STILL = 1e-5
"""Mean squared distance of v_θ from the base below which no picture changes; the default run has
1e-3 after ten steps."""
FAR = 0.5
"""The same above which the model has left what it knew: velocities have a variance of about 1."""
SKIPPED = 0.05
LAG = 0.5
"""Distance of v_θ to v_old over its distance to the base, above which v_old does not follow."""
ALIKE = 0.5
"""Least diversity within groups over that of the first steps."""
BLANK = 0.05
CANCELLED = "rewards that cancel out"
STEPS = 5
"""Steps whose mean counts where an extreme is looked for: a single one may be a spike."""


def too_small(e: Evidence, rising: list[str]) -> Finding | None:
    distance = _highest(e.distance)
    moved = [abs(gain.mean) for gain in e.gains.values()]
    still = distance < STILL if math.isfinite(distance) else bool(moved) and max(moved) < 1e-3
    if not still or rising:
        return None
    seen = f"the model is {number(distance)} from the base (mean squared velocity)"
    if not math.isfinite(distance):
        seen = f"no score moved by more than {number(max(moved))} σ"
    lr, warmup = e.setting("optim", "lr"), e.setting("optim", "warmup_steps") or 0
    late = f", which warm-up reaches after {warmup} steps" if warmup >= e.steps else ""
    return Finding(
        "too small a step",
        None,
        f"After {e.steps} steps {seen}: it has hardly moved.",
        f"Raise optim.lr ({lr}{late}) tenfold, until kl grows within the first ten steps.",
    )


def too_large(e: Evidence, rising: list[str]) -> Finding | None:
    distance = _highest(e.distance)
    skipped = e.curve("skipped")
    lost = float(np.nanmax(skipped)) / e.steps if np.isfinite(skipped).any() else 0.0
    if lost > SKIPPED:
        seen = f"{percent(lost)} of the steps were skipped for gradients out of bounds"
    elif distance > FAR and not rising:
        seen = f"the model was {number(distance)} from the base (mean squared velocity)"
    else:
        return None
    return Finding(
        "too large a step",
        None,
        f"After {e.steps} steps {seen}, and no reward rises on held-out prompts."
        if not rising
        else f"After {e.steps} steps {seen}.",
        f"Lower optim.lr ({e.setting('optim', 'lr')}) to a third or a tenth, or raise objective.kl "
        f"({e.setting('objective', 'kl')}); start again from the base.",
    )


def collapse(e: Evidence, rising: list[str]) -> Finding | None:
    before, least = e.first("drift/diversity"), 0.0 - _highest(-e.curve("drift/diversity"))
    blank = e.late("drift/blank", 0.2) - e.first("drift/blank")
    seen = []
    if before > 0 and least < ALIKE * before:
        seen.append(f"pictures of one prompt differ by {number(least)}, {number(before)} at first")
    if blank > BLANK:
        seen.append(f"{percent(blank)} more of the pictures are blank")
    if not seen:
        return None
    return Finding(
        "collapse",
        None,
        f"The model collapses: {' and '.join(seen)}.",
        "Take an earlier checkpoint; then lower optim.lr, raise objective.kl, and look for the "
        "reward that such pictures please (see the drift statistics of the report).",
    )


def stale(e: Evidence, rising: list[str]) -> Finding | None:
    lag, distance = e.late("old_deviation"), recent(e.distance)
    if not (distance > STILL and lag > LAG * distance):
        return None
    decay = e.setting("rollout", "old_decay") or {}
    return Finding(
        "v_old stands still",
        None,
        f"The trained model is {number(lag)} from v_old, which draws the pictures, and "
        f"{number(distance)} from the base: v_old hardly follows.",
        f"Lower rollout.old_decay (initial {decay.get('initial')}, rate {decay.get('rate')}, cap "
        f"{decay.get('cap')}); 0 lets v_old follow at once.",
    )


def gamed(e: Evidence, rising: list[str]) -> Finding | None:
    up = [name for name in rising if name in e.gains and e.gains[name].mean > 0.1]
    down = [name for name in e.heldout if e.falls(name)]
    if not up or not down:
        return None
    worst = min(down, key=lambda name: e.gains[name].mean)
    best = max(up, key=lambda name: e.gains[name].mean)
    return Finding(
        "held-out judges fall",
        best,
        f"{best} rises ({e.told(best)}) while {worst}, which was not trained on, falls "
        f"({e.told(worst)}).",
        f"Train on {worst} or a score like it too, raise objective.kl, stop earlier, or look at "
        f"the pictures for what {best} is pleased by.",
    )


def cancelled(e: Evidence, rising: list[str]) -> Finding | None:
    if e.cancelling is None:
        return None
    (one, other), cos, weight = e.cancelling
    return Finding(
        CANCELLED,
        None,
        f"{one} and {other} oppose each other (mean cosine {cos:+.2f}): no step helps both. They "
        f"have {percent(weight)} of the weight.",
        "Drop one of the two, or make one score of both.",
    )


def _highest(curve: Floats) -> float:
    """The highest mean of some steps in a row, NaN where nothing is known.

    Not the last ones: a model that was thrown far off, or collapsed, may come back to the base.
    """
    known = curve[np.isfinite(curve)]
    if not len(known):
        return math.nan
    few = min(len(known), STEPS)
    return float(np.convolve(known, np.full(few, 1 / few), "valid").max())


RUN_CAUSES: tuple[Callable[[Evidence, list[str]], Finding | None], ...] = (
    too_small,
    too_large,
    collapse,
    stale,
    cancelled,
    gamed,
)
