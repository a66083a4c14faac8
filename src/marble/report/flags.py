"""Is the model cheating? Image statistics and held-out rewards against the base, in plain words.

A flag needs a change that nobody would call subtle: the *average* trained picture lies outside
the range that holds 90 % of the base's pictures, near-blank pictures appear, pictures of a group
grow alike, or the trained rewards climb while a held-out one clearly falls. Smaller shifts are
shown in the charts and stay quiet here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from marble.evaluation.canaries import canaries
from marble.report.folder import Floats, Picture, Run
from marble.report.gains import Gain
from marble.report.numbers import figure, mean, percent, sigma

RANGE = (5, 95)
"""Percentiles of the base's pictures: its central 90 %."""
FEWEST = 8
"""Base pictures needed before a range means anything."""
BLANK_RISE = 0.05
DIVERSITY_LOSS = 0.5
HELDOUT_FALL = 0.1
"""Fall of a held-out reward, in base standard deviations, under which it is not worth a flag."""

WORDS = {
    "sharpness": ("Sharpness", "less sharp", "sharper"),
    "contrast": ("Contrast", "flatter", "harsher"),
    "saturation": ("Saturation", "paler", "gaudier"),
    "entropy": ("Entropy of tones", "emptier in tone", "noisier in tone"),
    "edges": ("Edge density", "emptier of edges", "busier with edges"),
}


@dataclass(frozen=True)
class Check:
    """One canary: its title, the two sides as text, and a sentence. `flagged` says it sings."""

    name: str
    title: str
    base: str
    trained: str
    flagged: bool
    sentence: str


def statistics(pictures: Sequence[Picture]) -> dict[str, Floats]:
    """Each canary over an evaluation's pictures; measured from the files where not logged."""
    if not all(picture.canaries for picture in pictures):
        return _measured(pictures)
    names = dict.fromkeys(name for picture in pictures for name in picture.canaries)
    return {
        name: np.array([p.canaries[name] for p in pictures if name in p.canaries]) for name in names
    }


def base_range(values: Floats) -> tuple[float, float] | None:
    """The central 90 % of the base's pictures, or None where there are too few."""
    values = values[np.isfinite(values)]
    if len(values) < FEWEST:
        return None
    lo, hi = np.percentile(values, RANGE)
    return float(lo), float(hi)


def checks(
    run: Run,
    step: int,
    before: dict[str, Floats],
    now: dict[str, Floats],
    gained: Sequence[Gain],
    held: Sequence[Gain],
) -> list[Check]:
    """Every canary there is data for: `statistics` of the base against those of a step."""
    found: list[Check] = []
    for name in WORDS:
        if name in before and name in now and (band := base_range(before[name])):
            found.append(_range_check(name, before[name], now[name], band))
    if "blank" in before and "blank" in now and len(before["blank"]) >= FEWEST:
        found.append(_blank_check(before["blank"], now["blank"]))
    diversity = _diversity_check(run, step, before, now)
    if diversity:
        found.append(diversity)
    if gained and held:
        found.append(_gap_check(gained, held))
    return found


def _range_check(name: str, before: Floats, now: Floats, band: tuple[float, float]) -> Check:
    title, less, more = WORDS[name]
    centre = mean(now)
    low, high = centre < band[0], centre > band[1]
    shown = f"{figure(band[0])} to {figure(band[1])}"
    if low or high:
        sentence = (
            f"The average trained picture is {more if high else less} than 95 % of the base's."
        )
    else:
        sentence = "The average trained picture lies within the base's range."
    base = f"{figure(mean(before))} ({shown})"
    return Check(name, title, base, figure(centre), low or high, sentence)


def _blank_check(before: Floats, now: Floats) -> Check:
    was, share = mean(before), mean(now)
    # Two standard errors of the difference, so that one odd picture in a small set is no flag.
    error = math.sqrt(was * (1 - was) / len(before) + share * (1 - share) / len(now))
    flagged = share - was > max(BLANK_RISE, 2 * error)
    sentence = (
        "Near-blank pictures have appeared: the model may be erasing what a reward punishes."
        if flagged
        else "Near-blank pictures are no more common than in the base."
    )
    return Check("blank", "Near-blank pictures", percent(was), percent(share), flagged, sentence)


def _diversity_check(
    run: Run, step: int, before: dict[str, Floats], now: dict[str, Floats]
) -> Check | None:
    """Within prompt groups: from evaluations with several seeds a prompt, else from rollouts."""
    was = mean(before.get("diversity", np.empty(0)))
    left = mean(now.get("diversity", np.empty(0)))
    if not (math.isfinite(was) and math.isfinite(left)):
        curve = run.metrics.get("canary/diversity")[run.metrics.steps <= step]
        curve = curve[np.isfinite(curve)]
        if len(curve) < 10:
            return None
        was, left = mean(curve[:5]), mean(curve[-5:])
    flagged = left < DIVERSITY_LOSS * was
    sentence = (
        "Pictures of one prompt have grown alike: less than half of the base's diversity is left."
        if flagged
        else "Pictures of one prompt still differ from each other."
    )
    title = "Diversity within a prompt"
    return Check("diversity", title, figure(was), figure(left), flagged, sentence)


def _gap_check(gained: Sequence[Gain], held: Sequence[Gain]) -> Check:
    trained = mean([g.z for g in gained])
    fallen = [g for g in held if g.fell and g.z < -HELDOUT_FALL]
    flagged = trained > 0 and bool(fallen)
    if flagged:
        worst = min(fallen, key=lambda g: g.z)
        sentence = (
            f"The trained rewards rise while {worst.name}, which was not trained on, "
            f"falls by {figure(abs(worst.delta))}: the gain may not be real."
        )
    elif fallen:
        sentence = "Held-out rewards fall together with the trained ones."
    else:
        sentence = "No held-out reward clearly falls."
    return Check(
        "gap",
        "Trained against held-out",
        f"held-out {sigma(mean([g.z for g in held]))}",
        f"trained {sigma(trained)}",
        flagged,
        sentence,
    )


def _measured(pictures: Sequence[Picture]) -> dict[str, Floats]:
    """Statistics from the picture files themselves; pictures group by prompt."""
    by_size: dict[tuple[int, int], list[tuple[np.ndarray, str]]] = {}
    for sample in pictures:
        with Image.open(sample.file) as image:
            pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        by_size.setdefault(pixels.shape[1:], []).append((pixels, sample.prompt))
    parts = [
        canaries(np.stack([p for p, _ in same]), [prompt for _, prompt in same])
        for same in by_size.values()
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
