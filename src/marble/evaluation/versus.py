"""Which run is ahead, and whether the pictures can tell: paired intervals on differences.

All runs are looked at on the pictures they have in common (same prompt, same seed), in standard
deviations of the base's scores. Prompts are resampled once for all runs, so a difference is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marble.evaluation.intervals import Interval
from marble.evaluation.runs import Evaluation, Floats, scores_of

MEASURES = ("mean gain", "worst gain")
"""Over the rewards, of each one's mean gain over the base."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Lead:
    """The run that is first in a measure, and its lead over each of the others."""

    measure: str
    first: int
    gain: Interval
    leads: dict[int, Interval]

    @property
    def clear(self) -> list[int]:
        """Runs whose interval excludes a tie."""
        return [run for run, lead in self.leads.items() if lead.lo > 0]

    @property
    def close(self) -> list[int]:
        return [run for run in self.leads if run not in self.clear]


@dataclass(frozen=True)
class Versus:
    """Gains of every run over the base, on the pictures that all of them have."""

    rewards: list[str]
    pictures: int
    gains: dict[str, list[Interval]]
    """By measure, one interval per run."""
    worst: list[str]
    """The reward that gained least, per run."""
    leads: list[Lead]


def versus(
    base: Evaluation, runs: Sequence[Evaluation], rewards: Sequence[str], seed: int = 0
) -> Versus | None:
    """None where the runs and the base share no picture that these rewards score and vary on."""
    tables, prompts = _common([base, *runs], list(rewards))
    if not tables.size:
        return None
    before, after_RKN = tables[0], tables[1:]
    known_KN = np.asarray(np.isfinite(tables).all(axis=0))
    spread_K = np.array(
        [before[k][known].std() if known.any() else 0.0 for k, known in enumerate(known_KN)]
    )
    use = spread_K > 1e-12
    if not use.any():
        return None
    names = [name for name, kept in zip(rewards, use) if kept]
    gain_RKN = (after_RKN - before)[:, use] / spread_K[use][:, None]
    exact_RK, drawn_BRK = _resampled(gain_RKN, known_KN[use], prompts, seed)
    exact = {"mean gain": exact_RK.mean(axis=1), "worst gain": exact_RK.min(axis=1)}
    drawn = {"mean gain": drawn_BRK.mean(axis=2), "worst gain": drawn_BRK.min(axis=2)}
    count = int(known_KN.any(axis=0).sum())
    return Versus(
        rewards=names,
        pictures=count,
        gains={
            m: [_interval(exact[m][r], drawn[m][:, r], count) for r in range(len(runs))]
            for m in MEASURES
        },
        worst=[names[int(k)] for k in exact_RK.argmin(axis=1)],
        leads=[_lead(m, exact[m], drawn[m], count) for m in MEASURES],
    )


def sentences(found: Versus, labels: Sequence[str]) -> list[str]:
    """The comparison in words. A lead that the interval does not carry is called a tie."""
    if len(labels) < 2:
        return []
    count = len(found.rewards)
    over = f"the {count} rewards trained on" if count > 1 else f"{found.rewards[0]}, trained on"
    told = []
    for lead in found.leads:
        if lead.measure == "worst gain" and count == 1:
            continue
        first = labels[lead.first]
        start = f"{lead.measure.capitalize()} over {over}: {first} has the highest, "
        start += _sigma(lead.gain.mean)
        if lead.measure == "worst gain":
            start += f" ({found.worst[lead.first]})"
        ahead = [f"{labels[r]} by {_amount(lead.leads[r])}" for r in lead.clear]
        tied = [f"{labels[r]} ({_amount(lead.leads[r])})" for r in lead.close]
        parts = [f"ahead of {_listed(ahead)}"] if ahead else []
        if tied:
            parts.append(f"the interval does not exclude a tie with {_listed(tied)}")
        told.append(f"{start}; {'; '.join(parts)}.")
    told.append(
        f"Intervals are 95 %, paired over the prompts of {found.pictures} pictures. They say "
        "nothing about another training seed: `marble study` repeats those."
    )
    return told


def record(found: Versus, names: Sequence[str]) -> dict[str, Any]:
    """For JSON."""
    return {
        "rewards": found.rewards,
        "pictures": found.pictures,
        "leads": [
            {
                "measure": lead.measure,
                "first": names[lead.first],
                "ahead_of": {names[r]: gap.record() for r, gap in lead.leads.items()},
                "clear_of": [names[r] for r in lead.clear],
            }
            for lead in found.leads
        ],
        "said": sentences(found, names),
    }


def _common(evaluations: Sequence[Evaluation], names: list[str]) -> tuple[Floats, list[str]]:
    """([evaluations, K, n], prompts) over the pictures that every evaluation has."""
    found = [scores_of(evaluation, names) for evaluation in evaluations]
    keys = [key for key in found[0] if all(key in other for other in found[1:])]
    table = np.array([[one[key] for key in keys] for one in found]).reshape(
        len(found), len(keys), len(names)
    )
    return table.transpose(0, 2, 1), [str(prompt) for prompt, _ in keys]


def _resampled(
    gain_RKN: Floats, known_KN: np.ndarray, prompts: Sequence[str], seed: int
) -> tuple[Floats, Floats]:
    """Means per run and reward: of all pictures, and of each resample of the prompts."""
    index = {name: i for i, name in enumerate(dict.fromkeys(prompts))}
    member_NC = np.zeros((len(prompts), len(index)))
    member_NC[np.arange(len(prompts)), [index[p] for p in prompts]] = 1
    sums_RKC = np.where(known_KN, gain_RKN, 0.0) @ member_NC
    sizes_KC = known_KN.astype(np.float64) @ member_NC
    rng = np.random.default_rng(seed)
    clusters = len(index)
    draws_BC = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=RESAMPLES)
    totals_BRK = np.einsum("bc,rkc->brk", draws_BC.astype(np.float64), sums_RKC)
    counts_BK = draws_BC @ sizes_KC.T
    whole = (counts_BK > 0).all(axis=1)  # a resample without a reward's prompts tells nothing
    drawn = totals_BRK[whole] / counts_BK[whole][:, None]
    return sums_RKC.sum(axis=2) / sizes_KC.sum(axis=1), drawn


def _lead(measure: str, exact_R: Floats, drawn_BR: Floats, count: int) -> Lead:
    first = int(np.argmax(exact_R))
    leads = {
        r: _interval(exact_R[first] - exact_R[r], drawn_BR[:, first] - drawn_BR[:, r], count)
        for r in range(len(exact_R))
        if r != first
    }
    return Lead(measure, first, _interval(exact_R[first], drawn_BR[:, first], count), leads)


def _interval(value: float, drawn_B: Floats, count: int) -> Interval:
    lo, hi = np.quantile(drawn_B, [0.025, 0.975]) if len(drawn_B) else (np.nan, np.nan)
    return Interval(float(value), float(lo), float(hi), count)


def _amount(gap: Interval) -> str:
    return f"{_sigma(gap.mean)} [{_plain(gap.lo)}, {_plain(gap.hi)}]"


def _sigma(value: float) -> str:
    return f"{_plain(value)} σ"


def _plain(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−").replace("−0.00", "0.00").replace("+0.00", "0.00")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
