"""The stateful harmoniser: a rule with its options, its schedule and its moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from marble.errors import CheckpointError, MarbleError

from ._balance import Balanced, Options, balance
from ._ema import update_ema
from ._harmony import harmony
from ._hybrid import Gated
from ._linalg import Array, cosines, from_json, spread, to_json
from ._options import check_names, floors_K, groups_K, named_options, priorities_K
from ._registry import DEFAULT, get_rule
from ._rule import FreeRule, GramRule, Rule, check_gram
from ._schedule import Schedule
from ._solution import Solution


class Harmoniser:
    """Turns the Gram matrix of K reward gradients into the K coefficients of a step.

    method, options: the rule and its own options (see `get_rule`).
    names: the rewards, in the order of the Gram matrix.
    n, probe, consolidate, total_steps: see `Schedule`.
    rho: ᾱ ← ρᾱ + (1−ρ)α* at a refresh, from ᾱ = 1/K (`marble-paper`: from the first α*).
    amortise: coefficients between refreshes. "paper": c = ᾱ; "normalised": c_k = ᾱ_k n̄/‖g_k‖
        with the norms of the last refresh. Rules that act on raw gradients have c = ᾱ in both.
    refresh_with: a refresh step itself takes α* ("raw", the published full step) or ᾱ ("ema").
    priorities: π_k by name (default 1). For min-norm rules the solve sees g_k/π_k, which makes
        the cosines proportional to π; other rules take π as their preference.
    floors: the least cosine of the direction with a reward, by name; see `keep_floors`. They bind
        the solve, α*, and so the refresh step (with refresh_with="raw").
    groups: label → reward names; see `grouped_weights`.
    ridge: added to the diagonal of the normalised Gram (0.02–0.1 calms near-duplicates).
    hybrid: "gate" holds a Gram method back by measured progress; see `Gated`. `progress` are the
        options of its `Progress`.

    A reward is silent when it is not active or its gradient is zero: it leaves the solve, gets
    coefficient 0 and keeps ᾱ_k; notes name it. With all rewards silent all coefficients are 0.
    """

    def __init__(
        self,
        method: str = DEFAULT,
        names: Sequence[str] = (),
        *,
        n: int = 10,
        rho: float = 0.7,
        amortise: Literal["paper", "normalised"] = "paper",
        refresh_with: Literal["raw", "ema"] = "raw",
        priorities: Mapping[str, float] | None = None,
        floors: Mapping[str, float] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        ridge: float = 0.0,
        probe: float = 1.0,
        consolidate: int = 0,
        total_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        hybrid: Literal["none", "gate"] = "none",
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        if not 0.0 <= rho < 1.0:
            raise MarbleError(f"rho = {rho}: give a number in [0, 1).")
        if amortise not in ("paper", "normalised"):
            raise MarbleError(f"amortise = {amortise!r}: choose 'paper' or 'normalised'.")
        if refresh_with not in ("raw", "ema"):
            raise MarbleError(f"refresh_with = {refresh_with!r}: choose 'raw' or 'ema'.")
        if not (np.isfinite(ridge) and ridge >= 0.0):
            raise MarbleError(f"ridge = {ridge}: give a number of at least 0.")
        self.names = check_names(names)
        self.rule = get_rule(method, **named_options(options, self.names))
        if hybrid not in ("none", "gate"):
            raise MarbleError(f"hybrid = {hybrid!r}: choose 'none' or 'gate'.")
        self.gated: Gated | None = None
        if hybrid == "gate":
            self.gated = Gated(named_options(progress, self.names))
        if not self.needs_gram and (floors or groups or ridge or self.gated):
            raise MarbleError(
                f"Method {method!r} looks at no gradients: floors, groups, ridge and hybrid need a "
                "Gram method such as 'marble'. Leave them out."
            )
        if floors and self.gated:
            raise MarbleError("hybrid 'gate' leaves the solved direction and its floors: take one.")
        self.schedule = Schedule(n, probe, consolidate, total_steps)
        self.rho, self.amortise, self.refresh_with = rho, amortise, refresh_with
        self.options = Options(
            priorities_K(priorities, self.names),
            floors_K(floors, self.names),
            groups_K(groups, self.names),
            float(ridge),
        )
        k = len(self.names)
        self._ema_K = np.full(k, 1.0 / k)
        self._raw_K = np.full(k, 1.0 / k)
        self._norms_K = np.full(k, np.nan)
        self._alpha()  # a fixed rule with the wrong number of weights fails here, not in a step

    # -- schedule -------------------------------------------------------------------------------

    @property
    def needs_gram(self) -> bool:
        """Whether the method looks at gradients at all."""
        return isinstance(self.rule, GramRule)

    def is_refresh(self, step: int) -> bool:
        """Whether optimiser step `step` (from 0) must bring a Gram matrix."""
        return self.needs_gram and self.schedule.is_refresh(step)

    def probe_count(self, micro_batches: int) -> int:
        """How many of a refresh step's micro-batches keep their K gradients and enter the solve."""
        return self.schedule.probe_count(micro_batches)

    # -- steps ----------------------------------------------------------------------------------

    def solve(self, gram_KK: Array, active_K: Array | None = None) -> Solution:
        """The full step: solve on this Gram matrix, update ᾱ and the norms.

        active_K: False for a reward without an informative sample in this step.
        """
        gram = check_gram(gram_KK, self.names)
        norms, cos = cosines(gram)
        active, notes = self._active(active_K, norms)
        if not active.any():
            return self._nothing(cos, norms, (*notes, "All rewards are silent: no step."))
        if isinstance(self.rule, GramRule):
            index = np.flatnonzero(active)
            found = self._balance(self.rule, gram, index)
            raw, gap = np.zeros(len(gram)), found.gap
            raw[index] = found.alpha
            notes += found.notes
            self._raw_K = raw
            first = self.rule.starts_whole and not np.isfinite(self._norms_K).any()
            self._norms_K = np.where(active, norms, self._norms_K)
            if found.took_part.any():
                part = np.isin(np.arange(len(gram)), index[found.took_part])
                self._ema_K = update_ema(self._ema_K, raw, part, 0.0 if first else self.rho)
        else:
            raw, gap = self._share(active), None
        alpha = raw if self.refresh_with == "raw" or not self.needs_gram else self._share(active)
        c = self.rule.coefficients(self._held_back(alpha, active), np.where(active, norms, 0.0))
        return Solution(
            coefficients_K=c,
            alpha_K=self._alpha(),
            alpha_raw_K=raw.copy(),
            norms_K=norms,
            active_K=active,
            refreshed=self.needs_gram,
            notes=notes,
            cos_KK=cos,
            gap=gap,
            harmony=harmony(c, gram, active),
        )

    def trial(self, gram_KK: Array, active_K: Array | None = None) -> Array:
        """The coefficients α* of this Gram matrix, options included, without a trace in the state.

        For measuring: solve on part of a step, look at the rest of it.
        """
        gram = check_gram(gram_KK, self.names)
        norms = cosines(gram)[0]
        active, _ = self._active(active_K, norms)
        alpha = self._share(active)
        if isinstance(self.rule, GramRule) and active.any():
            index = np.flatnonzero(active)
            alpha = np.zeros(len(gram))
            alpha[index] = self._balance(self.rule, gram, index).alpha
        return self.rule.coefficients(self._held_back(alpha, active), np.where(active, norms, 0.0))

    def cached(self, step: int | None = None, active_K: Array | None = None) -> Solution:
        """Coefficients for a step without a solve.

        `step` lets the final consolidation begin; `active_K`, where known, hands the weight of
        the silent rewards to the others.
        """
        active, notes = self._active(active_K, None)
        k = len(self.names)
        if not active.any():
            c = np.zeros(k)
            notes += ("All rewards are silent: no step.",)
        elif step is not None and self.schedule.consolidating(step):
            c = active / active.sum()
            notes += ("Consolidation: uniform coefficients.",)
        else:
            c = self._held_back(self._share(active), active)
            if self.needs_gram and self.amortise == "normalised":
                c = self.rule.coefficients(c, np.where(active, self._known_norms(), 0.0))
        return Solution(
            coefficients_K=c,
            alpha_K=self._alpha(),
            alpha_raw_K=self._raw_K.copy(),
            norms_K=self._norms_K.copy(),
            active_K=active,
            refreshed=False,
            notes=notes,
        )

    @property
    def observers(self) -> list[Rule]:
        """Whoever learns from what training shows: the rule, and the progress that gates it."""
        both = (*([self.gated.progress] if self.gated else []), self.rule)
        return [rule for rule in both if rule.observes]

    @property
    def paired(self) -> int:
        """How many of an epoch's pictures should be drawn by the base too; 0: none."""
        return max((rule.paired for rule in self.observers), default=0)

    def observe(
        self,
        reward_means_K: Array,
        reward_stds_K: Array,
        counts_K: Array | None = None,
        advantages_KN: Array | None = None,
    ) -> None:
        """Show the step's reward means and stds (NaN or count 0: not applicable) and advantages to
        the rules that observe; for all others this does nothing."""
        shape = (len(self.names),)
        for rule in self.observers:
            if np.shape(reward_means_K) != shape or np.shape(reward_stds_K) != shape:
                raise MarbleError(
                    f"observe needs one mean and one std for each of the {shape[0]} rewards, got "
                    f"shapes {np.shape(reward_means_K)} and {np.shape(reward_stds_K)}."
                )
            rule.observe(reward_means_K, reward_stds_K, counts_K, advantages_KN)

    def observe_pairs(self, now_Kn: Array, base_Kn: Array) -> dict[str, Array]:
        """Show scores of paired samples to the rules that asked for them; what is worth logging."""
        found: dict[str, Array] = {}
        for rule in self.observers:
            found |= rule.observe_pairs(now_Kn, base_Kn)
        return found

    def doubts(self, epoch: int) -> list[str]:
        """Which rewards have almost no weight, and why, when it is time to say so."""
        return [line for rule in self.observers for line in rule.doubts(self.names, epoch)]

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON types; floats survive a JSON round trip exactly."""
        return {
            "method": self._saved_name,
            "names": list(self.names),
            "ema": to_json(self._ema_K),
            "raw": to_json(self._raw_K),
            "norms": to_json(self._norms_K),
            "rule": self.rule.state_dict(),
            "steer": self.gated.state_dict() if self.gated else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`; refuses the state of another method or other rewards."""
        for key, mine in (("method", self._saved_name), ("names", list(self.names))):
            if state.get(key) != mine:
                raise CheckpointError(
                    f"The saved balance state has {key} {state.get(key)!r}, this run {mine!r}. "
                    "Resume with the same balance.method and rewards, or start without the state."
                )
        self._ema_K = from_json(state["ema"])
        self._raw_K = from_json(state["raw"])
        self._norms_K = from_json(state["norms"])
        self.rule.load_state_dict(state["rule"])
        if self.gated:
            self.gated.load_state_dict(state["steer"])

    @property
    def _saved_name(self) -> str:
        return self.rule.saved_as or self.rule.name

    # -- parts ----------------------------------------------------------------------------------

    def _balance(self, rule: GramRule, gram: Array, index: Array) -> Balanced:
        """One solve over the rewards at `index`, with all options."""
        sub = gram[np.ix_(index, index)]
        return balance(rule, sub, self.options.of(index), self._pick(index))

    def _held_back(self, alpha: Array, active: Array) -> Array:
        """α after the gate of measured progress, if there is one."""
        return self.gated(alpha, active) if self.gated else alpha

    def _alpha(self) -> Array:
        """ᾱ, or the weights of a rule that has no solve."""
        if isinstance(self.rule, FreeRule):
            return self.rule.current(self.options.priorities_K)
        return self._ema_K.copy()

    def _share(self, active: Array) -> Array:
        """ᾱ with the weight of the silent rewards handed to the active ones."""
        return spread(self._alpha(), active)

    def _known_norms(self) -> Array:
        """Norms of the last refresh; the mean of the known ones is the guess for an unknown one."""
        known = np.isfinite(self._norms_K)
        return np.where(known, self._norms_K, self._norms_K[known].mean() if known.any() else 1.0)

    def _active(self, active_K: Array | None, norms: Array | None) -> tuple[Array, tuple[str, ...]]:
        k = len(self.names)
        active = np.ones(k, dtype=bool) if active_K is None else np.array(active_K, dtype=bool)
        if active.shape != (k,):
            raise MarbleError(f"active_K must have shape ({k},), got {active.shape}.")
        if norms is not None:
            active &= norms > 0.0
        silent = np.flatnonzero(~active)
        return active, (f"Silent: {', '.join(self._pick(silent))}.",) if len(silent) else ()

    def _nothing(self, cos: Array, norms: Array, notes: tuple[str, ...]) -> Solution:
        zero = np.zeros(len(self.names))
        none = np.zeros(len(self.names), dtype=bool)
        calm = {"min": 0.0, "mean": 0.0, "var": 0.0, "conflict": 0.0}
        return Solution(
            zero, self._alpha(), zero.copy(), norms, none, self.needs_gram, notes, cos, 0.0, calm
        )

    def _pick(self, which: Array) -> list[str]:
        return [str(name) for name in np.array(self.names)[which]]
