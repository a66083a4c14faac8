"""Is the model cheating? Image statistics and held-out rewards against the base, in plain words.

A flag needs a change that nobody would call subtle. Image statistics: the average trained picture,
or a third of all of them, lies outside the range that holds 90 % of the base's (a third, because a
model may cheat on one source of prompts and leave the others alone). Near-blank pictures appear,
pictures of a group grow alike, or a trained reward rises while one that was not trained on falls.
Smaller shifts are shown in the charts and stay quiet here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from PIL import Image

from marble.evaluation.drift import drift_statistics
from marble.report.folder import Floats, Picture, Run
from marble.report.gains import Gain
from marble.report.numbers import count, figure, mean, percent, sigma

RANGE = (5, 95)
"""Percentiles of the base's pictures: its central 90 %."""
FEWEST = 8
"""Base pictures needed before a range means anything."""
MOST_OUTSIDE = 1 / 3
"""Share of pictures beyond one end of the base's range, where the base itself has a twentieth."""
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
    """One drift statistic: its title, the two sides as text, and a sentence."""

    name: str
    title: str
    base: str
    trained: str
    flagged: bool
    sentence: str


def statistics(pictures: Sequence[Picture]) -> dict[str, Floats]:
    """Each drift statistic over an evaluation's pictures; from the files where not logged."""
    if not all(picture.drift for picture in pictures):
        return _measured(pictures)
    names = dict.fromkeys(name for picture in pictures for name in picture.drift)
    return {name: np.array([p.drift[name] for p in pictures if name in p.drift]) for name in names}


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
    """Every drift statistic there is data for: `statistics` of the base against those of a step."""
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
    below, above = mean(now < band[0]), mean(now > band[1])
    share, word = (above, more) if above >= below else (below, less)
    expected = 1 - RANGE[1] / 100
    # Two standard errors, so that a few odd pictures in a small set are no flag.
    error = math.sqrt(share * (1 - share) / len(now))
    flagged = True
    if centre < band[0] or centre > band[1]:
        word = more if centre > band[1] else less
        sentence = f"The average trained picture is {word} than {RANGE[1]} % of the base's."
    elif share > MOST_OUTSIDE and share - 2 * error > expected:
        sentence = f"{percent(share)} of the pictures are {word} than {RANGE[1]} % of the base's."
    else:
        flagged, sentence = False, "The trained pictures keep to the base's range."
    shown = f"{figure(mean(before))} ({figure(band[0])} to {figure(band[1])})"
    return Check(name, title, shown, figure(centre), flagged, sentence)


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
        curve = run.metrics.get("drift/diversity")[run.metrics.steps <= step]
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
    """Does a trained reward rise at the cost of what was not trained on?"""
    risen = [g for g in gained if g.improved]
    fallen = [g for g in held if _surely_fell(g, len(held))]
    flagged = bool(risen and fallen)
    if flagged:
        first, worst = max(risen, key=lambda g: g.z), min(fallen, key=lambda g: g.z)
        rise, fall = (sigma(abs(g.z)).lstrip("+") for g in (first, worst))
        if len(fallen) == 1:
            but = f"{worst.name}, which was not trained on, falls by {fall}"
        else:
            but = (
                f"{count(len(fallen))} scores that were not trained on fall, {worst.name} by {fall}"
            )
        sentence = f"{first.name} rises by {rise}, but {but}: the gain may not be real."
    elif fallen:
        sentence = "Held-out rewards fall, and no trained reward rises."
    else:
        sentence = "No held-out reward clearly falls."
    return Check(
        "gap",
        "Trained against held-out",
        f"held-out {sigma(mean([g.z for g in held]))}",
        f"trained {sigma(mean([g.z for g in gained]))}",
        flagged,
        sentence,
    )


def _surely_fell(gain: Gain, tried: int) -> bool:
    """Below zero even with an interval widened for having looked at `tried` rewards at once."""
    normal = NormalDist()
    widened = normal.inv_cdf(1 - 0.025 / tried) / normal.inv_cdf(1 - 0.025)
    return gain.z < -HELDOUT_FALL and gain.delta + widened * (gain.hi - gain.delta) < 0


def _measured(pictures: Sequence[Picture]) -> dict[str, Floats]:
    """Statistics from the picture files themselves; pictures group by prompt."""
    by_size: dict[tuple[int, int], list[tuple[np.ndarray, str]]] = {}
    for sample in pictures:
        with Image.open(sample.file) as image:
            pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        by_size.setdefault(pixels.shape[1:], []).append((pixels, sample.prompt))
    parts = [
        drift_statistics(np.stack([p for p, _ in same]), [prompt for _, prompt in same])
        for same in by_size.values()
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
