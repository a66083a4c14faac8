"""GenEval's rules (Ghosh et al. 2023): do these detections satisfy this prompt's metadata?

``strict`` is the published 0/1 judgement. ``partial`` is for training: the mean of the checks
that ``include`` asks for (objects there, colours right, relation right) times what ``exclude``
leaves. It lies in [0, 1], is 1 exactly when ``strict`` holds, never falls when a check comes
nearer to being met, and gives nothing for a relation that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marble.rewards.geneval.detectors import Detections

CONFIDENCE = 0.3
COUNTING_CONFIDENCE = 0.9
MAX_OBJECTS = 16
#: Share of the two boxes' sizes by which centres must differ before a relation counts.
POSITION_MARGIN = 0.1

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
RELATIONS = ("left of", "right of", "above", "below")

#: Names the colours of the objects with these indices, all of the given class.
ColorsOf = Callable[[list[int], str], list[str]]


@dataclass(frozen=True)
class Verdict:
    """``reasons`` says in words what is wrong; empty exactly when ``strict``."""

    strict: bool
    partial: float
    reasons: tuple[str, ...] = ()


def by_class(found: Detections, tag: str) -> dict[str, list[int]]:
    """Indices of the detections that count, by class, most confident first."""
    threshold = COUNTING_CONFIDENCE if tag == "counting" else CONFIDENCE
    kept: dict[str, list[int]] = {}
    for i in np.argsort(-np.asarray(found.scores), kind="stable"):
        if found.scores[i] > threshold:
            kept.setdefault(found.labels[i], []).append(int(i))
    return {label: indices[:MAX_OBJECTS] for label, indices in kept.items()}


def relations(box_a: np.ndarray, box_b: np.ndarray) -> set[str]:
    """Where a lies relative to b, leaving out offsets within the margin.

    With centres' offset o and box sizes s, o' = sign(o)·max(|o| − 0.1·(s_a + s_b), 0); a relation
    holds along an axis where o'/‖o‖ exceeds 1/2.
    """
    a, b = np.asarray(box_a, float).reshape(2, 2), np.asarray(box_b, float).reshape(2, 2)
    offset = a.mean(0) - b.mean(0)
    margin = POSITION_MARGIN * (np.abs(a[1] - a[0]) + np.abs(b[1] - b[0]))
    beyond = np.maximum(np.abs(offset) - margin, 0) * np.sign(offset)
    if np.all(np.abs(beyond) < 1e-3):
        return set()
    dx, dy = beyond / np.linalg.norm(offset)
    holds = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return {name for name, true in holds.items() if true}


def judge(metadata: Mapping[str, Any], found: Detections, colors_of: ColorsOf) -> Verdict:
    """Apply the rules to one picture's detections."""
    objects = by_class(found, str(metadata.get("tag", "")))
    reasons: list[str] = []
    checks: list[float] = []
    groups: list[list[int] | None] = []
    for wanted in metadata.get("include", []):
        name, count = wanted["class"], int(wanted["count"])
        group = objects.get(name, [])[:count]
        met = len(group) >= count
        checks.append(len(group) / count if count else 1.0)
        if not met:
            reasons.append(f"expected {count} {name}, found {len(group)}")
        if "color" in wanted:
            seen = colors_of(group, name) if group else []
            right = seen.count(wanted["color"])
            checks.append(right / count if count else 1.0)
            if met and right < count:
                met = False
                reasons.append(f"expected {wanted['color']} {name}, found {', '.join(seen)}")
        if "position" in wanted:
            relation, target = wanted["position"]
            others = groups[target]
            holds = bool(met and others) and all(
                relation in relations(found.boxes[i], found.boxes[j])
                for i in group
                for j in others or []
            )
            checks.append(float(holds))
            if met and not holds:
                met = False
                reasons.append(f"{name} is not {relation} its target")
        groups.append(group if met else None)
    partial = float(np.mean(checks)) if checks else 1.0
    for unwanted in metadata.get("exclude", []):
        name, limit = unwanted["class"], int(unwanted["count"])
        surplus = len(objects.get(name, [])) - limit + 1
        if surplus > 0:
            reasons.append(f"expected fewer than {limit} {name}, found {surplus + limit - 1}")
            partial *= max(0.0, 1 - surplus / max(limit, 1))
    return Verdict(not reasons, partial, tuple(reasons))
