"""The numbers that findings rest on, read once from a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marble.evaluation.intervals import Interval, gain_interval
from marble.evaluation.runs import Floats, RunRecord, read_run, score_tables
from marble.harmonise import RULES, GramRule, opposed_pairs
from marble.objectives import OBJECTIVES, objective_class
from marble.objectives.base import Objective

EARLY = 10
"""Steps before which nothing can be said."""


@dataclass(frozen=True)
class Groups:
    """Scores of one rollout by group, from `advantages/`."""

    scores_KN: Floats
    group_N: np.ndarray


@dataclass(frozen=True)
class Evidence:
    """A run's curves and evaluations, by reward."""

    run: RunRecord
    names: list[str]
    heldout: list[str]
    steps: int
    tables: list[Groups] = field(default_factory=list)
    columns: Mapping[str, Floats] | None = None
    """Metrics by key, where they have been read already; else the run's rows are looked at."""

    # -- curves -----------------------------------------------------------------------------

    def curve(self, key: str) -> Floats:
        """One value per step, NaN where it was not logged."""
        if self.columns is not None:
            return self.columns.get(key, np.full(self.steps, math.nan))
        values = [row.get(key) for row in self.run.metrics]
        found = [float(v) if isinstance(v, int | float) else math.nan for v in values]
        return np.array(found, dtype=np.float64)

    def late(self, key: str, share: float = 0.5) -> float:
        """Mean over the last `share` of the steps, NaN where nothing is known."""
        return recent(self.curve(key), share)

    def first(self, key: str, count: int = 5) -> float:
        values = self.curve(key)
        return _mean(values[np.isfinite(values)][:count])

    def setting(self, *path: str) -> Any:
        value: Any = self.run.config
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    @cached_property
    def distance(self) -> Floats:
        """Mean squared distance of v_θ from the base, per step; NaN where it is not known.

        It is logged as `kl`, unless the run's objective holds to v_old there, or measures in other
        units. An objective of the user's own is taken to be like the built-in ones.
        """
        name = self.setting("objective", "name")
        if name in OBJECTIVES:
            objective = objective_class(name)
            if objective.anchor != "base" or objective.penalty is not Objective.penalty:
                return np.full(self.steps, math.nan)
        return self.curve("kl")

    # -- how a reward fared -----------------------------------------------------------------

    @cached_property
    def gains(self) -> dict[str, Interval]:
        """Paired gains on held-out prompts in standard deviations of the base's scores."""
        base, last = self.run.base, self.run.last
        if base is None or last is None:
            return {}
        every = [*self.names, *self.heldout]
        now, then, prompts = score_tables(last, base, every)
        found = {}
        for name, after, before in zip(every, now, then):
            spread = float(np.nanstd(before)) if np.isfinite(before).any() else 0.0
            if spread > 1e-12:
                found[name] = gain_interval(after / spread, before / spread, prompts)
        return found

    def trend(self, name: str) -> tuple[float, float]:
        """Last third of the training means against the first, in standard deviations of a step's
        pictures, and in standard errors. Prompts differ from step to step: that is the error."""
        values = self.curve(f"reward/{name}/mean")
        values = values[np.isfinite(values)]
        third = len(values) // 3
        if third < 3:
            return math.nan, math.nan
        early, late = values[:third], values[-third:]
        error = math.hypot(early.std(ddof=1), late.std(ddof=1)) / math.sqrt(third)
        spread = self.first(f"reward/{name}/std")
        change = float(late.mean() - early.mean())
        return (
            change / spread if spread > 0 else math.nan,
            change / error if error > 0 else math.nan,
        )

    def paired(self, name: str) -> float:
        """Gain over the base on the same prompts and seeds in σ, as last measured while training:
        on the probe, else by the balance; NaN where neither was."""
        probe = self.curve(f"probe/{name}")
        known = probe[np.isfinite(probe)]
        return float(known[-1]) if len(known) else self.late(f"progress/{name}", 0.2)

    def rises(self, name: str) -> bool:
        """On held-out prompts where they were drawn, else over the base's samples of the same
        prompts and seeds, else by its training curve."""
        if name in self.gains:
            return self.gains[name].above_zero
        paired = self.paired(name)
        if math.isfinite(paired):
            return paired > 0.05
        change, errors = self.trend(name)
        return errors > 2 and change > 0.05

    def falls(self, name: str) -> bool:
        return name in self.gains and self.gains[name].below_zero and self.gains[name].mean < -0.1

    def told(self, name: str) -> str:
        """How it fared, in figures."""
        if name in self.gains:
            gain = self.gains[name]
            return f"{gain.mean:+.2f} σ [{gain.lo:+.2f}, {gain.hi:+.2f}] on held-out prompts"
        paired = self.paired(name)
        if math.isfinite(paired):
            return f"{paired:+.2f} σ over the base's pictures of the same prompts and seeds"
        change, errors = self.trend(name)
        if math.isfinite(change):
            return f"{change:+.2f} σ over training ({errors:+.1f} standard errors)"
        return "not known yet"

    # -- what may be the matter -------------------------------------------------------------

    def likeness(self, name: str) -> tuple[float, int]:
        """Correlation of a score between the base's picture and the trained model's of the same
        prompt and seed, and over how many; NaN without both evaluations."""
        base, last = self.run.base, self.run.last
        if base is None or last is None:
            return math.nan, 0
        now, then, _ = score_tables(last, base, [name])
        known = np.isfinite(now[0]) & np.isfinite(then[0])
        a, b = now[0][known], then[0][known]
        if len(a) < 3 or a.std() < 1e-12 or b.std() < 1e-12:
            return math.nan, len(a)
        return float(np.corrcoef(a, b)[0, 1]), len(a)

    def opposition(self, name: str) -> tuple[float, dict[str, float]]:
        """Mean cosine of its gradient with the other rewards', and by other."""
        found = {}
        for other in self.names:
            if other == name:
                continue
            straight = self.curve(f"cos/{name}|{other}")
            turned = self.curve(f"cos/{other}|{name}")
            mean = _mean(np.where(np.isfinite(straight), straight, turned))
            if math.isfinite(mean):
                found[other] = mean
        return _mean(np.array(list(found.values()))), found

    @cached_property
    def cancelling(self) -> tuple[list[str], float, float] | None:
        """The two rewards most opposed under a rule that solves: names, cosine, share of weight."""
        rule = RULES.get(str(self.setting("balance", "method")))
        if rule is None or not issubclass(rule, GramRule):
            return None
        cos = [[self.opposition(a)[1].get(b, math.nan) for b in self.names] for a in self.names]
        pairs = opposed_pairs(np.array(cos))
        if not pairs:
            return None
        shares = np.nan_to_num([self.late(f"alpha/{name}") for name in self.names])
        i, j = pairs[0]
        weight = float((shares[i] + shares[j]) / (shares.sum() or 1.0))
        return [self.names[i], self.names[j]], cos[i][j], weight

    def scores(self, name: str) -> Floats:
        """Every score of it that was written down, in rollouts and evaluations."""
        values = [table.scores_KN[self.names.index(name)] for table in self.tables]
        for evaluation in (self.run.base, self.run.last):
            if evaluation is not None:
                own = [sample["scores"].get(name) for sample in evaluation.samples]
                values.append(np.array(own, dtype=np.float64))
        joined = np.concatenate(values) if values else np.empty(0)
        return joined[np.isfinite(joined)]

    def flat_groups(self, name: str) -> Floats:
        """Scores of the groups whose pictures all got the same one."""
        k = self.names.index(name)
        found = []
        for table in self.tables:
            for group in np.unique(table.group_N):
                own = table.scores_KN[k][table.group_N == group]
                own = own[np.isfinite(own)]
                if len(own) and own.max() - own.min() < 1e-12:
                    found.append(float(own[0]))
        return np.array(found)


def gather(folder: str | Path | RunRecord, columns: Mapping[str, Floats] | None = None) -> Evidence:
    """Reads what a diagnosis needs."""
    run = folder if isinstance(folder, RunRecord) else read_run(folder)
    rewards = run.config.get("rewards") or {}
    heldout = [str(e.get("name")) for e in rewards.get("heldout") or [] if isinstance(e, dict)]
    names = _pursued(run)
    tables = [_table(path, names) for path in sorted(run.path.glob("advantages/*.json"))]
    return Evidence(
        run=run,
        names=names,
        heldout=heldout,
        steps=len(run.metrics),
        tables=[table for table in tables[-4:] if table is not None],
        columns=columns,
    )


def _pursued(run: RunRecord) -> list[str]:
    """The rewards trained on: where the balance names one, that one of those in the recipe."""
    chosen = (run.config.get("balance") or {}).get("reward")
    return [chosen] if chosen in run.rewards else run.rewards


def _table(path: Path, names: list[str]) -> Groups | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        order = [found["rewards"].index(name) for name in names]
        scores = np.array(found["score"], dtype=np.float64)[order]
        groups = np.array([sample["group"] for sample in found["samples"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Groups(scores, groups)


def recent(values: Floats, share: float = 0.5) -> float:
    """Mean of the last `share` of some values, NaN where nothing is known."""
    return _mean(values[int(len(values) * (1 - share)) :])


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan
