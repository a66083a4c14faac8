"""A finding, and figures written for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its name, the reward it concerns (None: the run), what was seen,
    and what to change."""

    ailment: str
    reward: str | None
    said: str
    change: str


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    return f"{value:.3g}"
