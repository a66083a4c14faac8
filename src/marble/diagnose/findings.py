"""From evidence to findings: the whole run first, then each reward that does not rise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marble.diagnose.evidence import EARLY, Evidence, gather
from marble.diagnose.reward_causes import REWARD_CAUSES
from marble.diagnose.run_causes import RUN_CAUSES
from marble.diagnose.words import Finding
from marble.evaluation.runs import Floats, RunRecord

__all__ = ["Diagnosis", "Finding", "diagnose"]

EXPLAINS_ALL = ("too small a step", "too large a step", "collapse", "v_old stands still")
"""Findings about the run after which a reward that stays flat needs no cause of its own."""

BY_CANCELLING = ("little weight", "opposed by other rewards", "no cause found")
"""Findings about a reward that say no more than that two rewards cancel out."""


@dataclass(frozen=True)
class Diagnosis:
    """Findings, the likeliest cause first; none where every reward rises."""

    run: str
    steps: int
    rising: list[str]
    flat: list[str]
    findings: list[Finding]
    headline: str

    def record(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(
    folder: str | Path | RunRecord, columns: Mapping[str, Floats] | None = None
) -> Diagnosis:
    """Looks at a run folder, finished or not; `columns` are its metrics, where read already."""
    evidence = gather(folder, columns)
    rising = [name for name in evidence.names if evidence.rises(name)]
    flat = [name for name in evidence.names if name not in rising]
    found: list[Finding] = []
    if evidence.steps >= EARLY:
        found = [f for cause in RUN_CAUSES if (f := cause(evidence, rising)) is not None]
        if not any(f.ailment in EXPLAINS_ALL for f in found):
            own = (_of_reward(evidence, name) for name in flat)
            found += [finding for finding in own if not _by_cancelling(evidence, finding)]
    return Diagnosis(
        run=evidence.run.name,
        steps=evidence.steps,
        rising=rising,
        flat=flat,
        findings=found,
        headline=_headline(evidence, rising, found),
    )


def _by_cancelling(evidence: Evidence, finding: Finding) -> bool:
    """Whether two rewards that cancel out explain it: it is of one of them, or they have most of
    the weight."""
    if evidence.cancelling is None or finding.ailment not in BY_CANCELLING:
        return False
    names, _, weight = evidence.cancelling
    return finding.reward in names or weight > 0.5


def _of_reward(evidence: Evidence, name: str) -> Finding:
    cause: Callable[[Evidence, str], Finding | None]
    for cause in REWARD_CAUSES:
        found = cause(evidence, name)
        if found is not None:
            return found
    raise AssertionError("the last cause always applies")


def _headline(evidence: Evidence, rising: list[str], found: list[Finding]) -> str:
    if not evidence.names:
        return "This run trains on no reward."
    if evidence.steps < EARLY:
        return f"{evidence.steps} steps are too few to say anything; look again after {EARLY}."
    up = f"{len(rising)} of {len(evidence.names)} rewards rise after {evidence.steps} steps"
    if not found:
        return f"{up}; nothing stands out."
    return f"{up}. {len(found)} finding{'s' * (len(found) > 1)}, the likeliest cause first."
