"""Why one reward does not rise, the most certain cause first."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from marble.diagnose.evidence import Evidence, recent
from marble.diagnose.words import Finding, number, percent
from marble.harmonise import RULES, GramRule

INFORMATIVE = 0.34
"""Share of samples in groups with some spread, below which a reward hardly speaks."""
APPLIES = 0.02
CLIPPED = 0.01
"""Under batch normalisation at most 1/a_max² can be: 4 % at 5."""
UNLIKE, LIKE = 0.15, 0.35
"""Correlations of a noisy score, and of other scores at least, with the base's pictures."""
TRUST = 0.3
OPPOSED = -0.1
FEW = 30
"""Pairs below which a correlation says nothing."""


def seldom(e: Evidence, name: str) -> Finding | None:
    share = e.late(f"reward/{name}/applicable", 1.0)
    if not share < APPLIES:
        return None
    return Finding(
        "rarely applies",
        name,
        f"{name} applies to {percent(share)} of the pictures.",
        "Give its prompt source a larger data.sources.NAME.share, or check rewards.NAME.sources.",
    )


def flat(e: Evidence, name: str) -> Finding | None:
    informative = e.late(f"reward/{name}/informative")
    if not informative < INFORMATIVE:
        return None
    scores, silent = e.scores(name), e.flat_groups(name)
    told = f"{percent(1 - informative)} of {name}'s pictures have the same score as their group"
    low, high = (scores.min(), scores.max()) if len(scores) else (math.nan, math.nan)
    if high - low < 1e-12:
        return Finding(
            "constant score",
            name,
            f"{told}; every score seen is {number(float(low))}.",
            "Check the reward itself: it tells no two pictures apart.",
        )
    at = float(silent.mean()) if len(silent) else e.late(f"reward/{name}/mean")
    where = (at - low) / (high - low)
    if where > 0.9:
        return Finding(
            "prompts too easy",
            name,
            f"{told}, near the best ({number(at)} of {number(float(high))}).",
            "Use harder prompts for it, or a denser form of the reward.",
        )
    if where < 0.1:
        return Finding(
            "prompts too hard",
            name,
            f"{told}, near the worst ({number(at)}; best seen {number(float(high))}).",
            "Use easier prompts, more data.images_per_prompt "
            f"({e.setting('data', 'images_per_prompt')}), or a form of the reward with partial "
            "credit.",
        )
    return Finding(
        "groups without spread",
        name,
        f"{told}.",
        f"Raise data.images_per_prompt ({e.setting('data', 'images_per_prompt')}), or give the "
        "reward finer steps.",
    )


def noise(e: Evidence, name: str) -> Finding | None:
    trust = e.late(f"progress_trust/{name}", 0.3)
    own, count = e.likeness(name)
    others = [e.likeness(other)[0] for other in [*e.names, *e.heldout] if other != name]
    usual = float(np.nanmedian(others)) if np.isfinite(others).any() else math.nan
    unlike = own < UNLIKE and count >= FEW and (usual > LIKE or recent(e.distance, 0.2) < 0.05)
    if not (trust < TRUST or unlike):
        return None
    seen = f"the share of signal in it is put at {percent(trust)}"
    if math.isfinite(own):
        seen = (
            f"its scores of the trained model's and the base model's picture of the same prompt "
            f"and seed are uncorrelated (r = {own:.2f} over {count} pairs"
        )
        seen += f"; other scores: {usual:.2f})" if math.isfinite(usual) else ")"
    return Finding(
        "mostly noise",
        name,
        f"{name}: {seen}.",
        "Average several calls of the reward, raise data.images_per_prompt, or drop it. `marble "
        "geometry RUN` measures the signal in its gradient.",
    )


def clipped(e: Evidence, name: str) -> Finding | None:
    share = e.late(f"advantage/{name}/clipped")
    if not share > CLIPPED:
        return None
    bound = e.setting("objective", "a_max")
    return Finding(
        "clipped advantages",
        name,
        f"{percent(share)} of {name}'s advantages are beyond objective.a_max ({bound}) and count "
        "as that: a few outliers set the scale.",
        "Take the outliers out of the reward (a logarithm, a bound), or raise objective.a_max.",
    )


def opposed(e: Evidence, name: str) -> Finding | None:
    mean, by = e.opposition(name)
    if not mean < OPPOSED:
        return None
    against = sorted((value, other) for other, value in by.items() if value < OPPOSED)
    listed = ", ".join(f"{other} ({value:+.2f})" for value, other in against[:4])
    return Finding(
        "opposed by other rewards",
        name,
        f"{name}'s gradient has a mean cosine of {mean:+.2f} with the others: against {listed}.",
        f"Decide which is wanted: raise {_lever(e, name)}, or drop one side.",
    )


def outweighed(e: Evidence, name: str) -> Finding | None:
    shares = {n: e.late(f"alpha/{n}") for n in e.names}
    total = sum(v for v in shares.values() if math.isfinite(v))
    if not total > 0 or not shares[name] / total < 0.25 / len(e.names):
        return None
    return Finding(
        "little weight",
        name,
        f"{name} has {percent(shares[name] / total)} of the weight.",
        f"Raise {_lever(e, name)}.",
    )


def _lever(e: Evidence, name: str) -> str:
    """The setting that gives a reward more weight under the run's method."""
    rule = RULES.get(str(e.setting("balance", "method")))
    if rule is None:  # one of the user's own, whose code is not run here
        return f"balance.priorities.{name} (or rewards.{name}.priority)"
    if issubclass(rule, GramRule):
        return f"balance.priorities.{name}"
    if rule.prioritised:
        return f"rewards.{name}.priority"
    if "weights" in rule.Options.model_fields:
        return f"rewards.{name}.weight"
    return f"rewards.{name}.weight with balance.method=fixed"


def training_only(e: Evidence, name: str) -> Finding | None:
    change, errors = e.trend(name)
    if name not in e.gains or not (errors > 3 and change > 0.2):
        return None
    return Finding(
        "rises on training prompts only",
        name,
        f"{name} rose by {change:+.2f} σ while training, but is {e.told(name)}.",
        "Use more training prompts, or prompts more like those it is judged on.",
    )


def unexplained(e: Evidence, name: str) -> Finding:
    return Finding(
        "no cause found",
        name,
        f"{name}: {e.told(name)}; nothing in the logs says why.",
        "Train longer, or evaluate on more prompts (eval.prompts) to see a smaller gain.",
    )


REWARD_CAUSES: tuple[Callable[[Evidence, str], Finding | None], ...] = (
    seldom,
    flat,
    clipped,
    noise,
    outweighed,
    opposed,
    training_only,
    unexplained,
)
