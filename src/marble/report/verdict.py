"""Did every reward improve, which checkpoint to take, and why: one sentence and one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from marble.evaluation.runs import Evaluation
from marble.report.flags import Check, checks, statistics
from marble.report.folder import Floats, Run
from marble.report.gains import Gain, gains
from marble.report.numbers import count, mean, sigma, signed


@dataclass(frozen=True)
class Candidate:
    """One evaluated checkpoint, judged."""

    evaluation: Evaluation
    trained: list[Gain]
    held: list[Gain]
    checks: list[Check]

    @property
    def step(self) -> int:
        return self.evaluation.step

    @property
    def mean_gain(self) -> float:
        """Over the rewards trained on, in base standard deviations."""
        return mean([g.z for g in self.trained])

    @property
    def overall(self) -> float:
        """Mean gain over all scores, trained on and held out: by this a checkpoint is chosen."""
        return mean([g.z for g in (*self.trained, *self.held)])

    @property
    def worst(self) -> Gain | None:
        known = [g for g in self.trained if math.isfinite(g.z)]
        return min(known, key=lambda g: g.z) if known else None

    @property
    def flagged(self) -> list[Check]:
        return [c for c in self.checks if c.flagged]

    def check(self, name: str) -> Check | None:
        return next((c for c in self.checks if c.name == name), None)

    @property
    def sound(self) -> bool:
        """No reward clearly below the base, no drift statistic flagged."""
        return not self.flagged and not any(g.fell for g in (*self.trained, *self.held))


@dataclass(frozen=True)
class Verdict:
    """What the top of the page says about one run."""

    tone: str
    """good | mixed | bad | none"""
    headline: str
    details: list[str]
    chosen: Candidate | None
    last: Candidate | None
    candidates: list[Candidate]
    statistics: dict[int, dict[str, Floats]]
    """Drift statistics of every evaluation's pictures by step; the base is 0."""


def judge(run: Run) -> Verdict:
    """The verdict on a run, from its evaluations alone."""
    seen = {
        0 if e.policy == "base" else e.step: statistics(list(run.pictures(e).values()))
        for e in run.evals
    }
    candidates = _candidates(run, seen)
    if not candidates:
        return Verdict("none", _no_verdict(run), [], None, None, [], seen)
    chosen, reason = _kept(run, candidates) or recommend(candidates)
    last = candidates[-1]
    tone, headline = _headline(chosen.trained)
    if chosen.flagged:
        tone = "bad"
    details = [_held_out(chosen.held), _drift(chosen), reason, _last(chosen, last)]
    return Verdict(tone, headline, [d for d in details if d], chosen, last, candidates, seen)


def _kept(run: Run, candidates: Sequence[Candidate]) -> tuple[Candidate, str] | None:
    """The checkpoint that the run itself kept as its best, if it was evaluated and is sound."""
    best = run.state.get("best")
    step = best.get("step") if isinstance(best, dict) else None
    found = next((c for c in candidates if c.step == step and c.sound), None)
    if found is None or not isinstance(best, dict):
        return None
    value = best.get("value")
    told = f", {best.get('by')} relative gain {sigma(value)}" if isinstance(value, float) else ""
    return found, f"Take step {step}: the best checkpoint by the run's own probe{told}."


def recommend(candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
    """The checkpoint to take, and why.

    Among those with nothing clearly below the base and no drift statistic flagged, the highest mean
    gain over all scores, also those held out, so that no reward is bought with a judge nobody
    trained on; where there is none, the one whose worst score is least bad. Ties go to the earlier
    step.
    """
    sound = [c for c in candidates if c.sound and math.isfinite(c.overall)]
    if sound:
        best = max(sound, key=lambda c: (c.overall, -c.step))
        why = f"the highest mean gain over all {len(best.trained) + len(best.held)} scores"
        if len(candidates) > 1:
            why += f" of {count(len(sound))} sound checkpoint{'s' * (len(sound) > 1)}"
        return best, f"Take step {best.step}: {why} ({sigma(best.overall)})."

    def least_bad(c: Candidate) -> tuple[float, int]:
        lowest = [g.z for g in (*c.trained, *c.held) if math.isfinite(g.z)]
        return (min(lowest, default=-math.inf), -c.step)

    best = max(candidates, key=least_bad)
    return best, (
        f"No checkpoint is free of a clear loss or a flag; step {best.step} loses least. "
        "Look at the pictures before you take it."
    )


def _candidates(run: Run, seen: dict[int, dict[str, Floats]]) -> list[Candidate]:
    found = []
    for evaluation in run.trained:
        if run.base is None:
            break
        trained = gains(run.base, evaluation, run.pursued)
        held = gains(run.base, evaluation, run.heldout)
        if trained:
            sung = checks(run, evaluation.step, seen[0], seen[evaluation.step], trained, held)
            found.append(Candidate(evaluation, trained, held, sung))
    return sorted(found, key=lambda c: c.step)


def _no_verdict(run: Run) -> str:
    if not run.evals and not run.step:
        return "Nothing has been logged yet: no step is done and no evaluation made."
    if not run.evals:
        return "This run has not been evaluated yet; the curves below come from training pictures."
    if run.base is None:
        return "The base model was not evaluated, so there is nothing to compare with."
    return "Only the base model has been evaluated so far; there is no trained score to compare."


def _headline(trained: Sequence[Gain]) -> tuple[str, str]:
    up = [g for g in trained if g.improved]
    down = [g for g in trained if g.fell]
    worst = min(trained, key=lambda g: g.z if math.isfinite(g.z) else math.inf)
    n = len(trained)
    if n == 1:
        word = {"improved": "improved", "fell": "fell", "unclear": "shows no clear change"}
        tone = {"improved": "good", "fell": "bad", "unclear": "mixed"}[worst.word]
        return tone, f"The one reward, {worst.name}, {word[worst.word]}: {_amount(worst)}."
    if len(up) == n:
        every = "Both rewards" if n == 2 else f"All {count(n)} rewards"
        return "good", f"{every} improved; the worst, {worst.name}, by {_amount(worst)}."
    if down:
        fallen = _listed([g.name for g in sorted(down, key=lambda g: g.z)])
        but = "but" if up else "and"
        start = f"{_some(len(up), n).capitalize()} rewards improved, {but} {fallen} fell"
        return "bad", f"{start}; the worst, {worst.name}, by {_amount(worst)}."
    unclear = [g.name for g in trained if g.word == "unclear"]
    if not up:
        return "mixed", f"No reward clearly changed; the worst, {worst.name}, by {_amount(worst)}."
    verb = "shows" if len(unclear) == 1 else "show"
    start = f"{_some(len(up), n).capitalize()} rewards improved and none fell"
    return "mixed", f"{start}; {_listed(unclear)} {verb} no clear change."


def _held_out(held: Sequence[Gain]) -> str:
    if not held:
        return ""
    up, down = [g for g in held if g.improved], [g for g in held if g.fell]
    n = len(held)
    start = "Held out, never trained on: "
    if len(up) == n:
        every = "both" if n == 2 else f"all {count(n)}"
        return start + (f"{held[0].name} improved too." if n == 1 else f"{every} improved.")
    parts = [f"{_some(len(up), n)} improved" if n > 1 else "no clear gain"]
    if down:
        parts.append(f"{_listed([g.name for g in down])} fell")
    return start + ", ".join(parts) + "."


def _drift(chosen: Candidate) -> str:
    if not chosen.checks:
        return ""
    if chosen.flagged:
        return "Signs of cheating: " + " ".join(c.sentence for c in chosen.flagged)
    return f"No sign of cheating: none of the {len(chosen.checks)} drift statistics is flagged."


def _last(chosen: Candidate, last: Candidate) -> str:
    if chosen.step == last.step:
        return ""
    if not last.sound:
        trouble = [g.name for g in (*last.trained, *last.held) if g.fell]
        trouble += [c.title.lower() for c in last.flagged]
        return f"The last evaluated step, {last.step}, is worse: see {_listed(trouble)}."
    return f"The last evaluated step, {last.step}, gains {sigma(last.overall)} on average."


def _amount(gain: Gain) -> str:
    scale = max(abs(gain.delta), abs(gain.lo), abs(gain.hi))
    amount = signed(gain.delta, scale)
    if not math.isfinite(gain.lo):
        return amount
    return f"{amount} [{signed(gain.lo, scale)}, {signed(gain.hi, scale)}]"


def _some(part: int, whole: int) -> str:
    return f"{count(part) if part else 'none'} of {count(whole)}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
