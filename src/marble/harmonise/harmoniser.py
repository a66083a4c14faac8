"""The stateful harmoniser: a rule with its options, its schedule and its moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from marble.errors import CheckpointError, MarbleError

from ._ema import update_ema
from ._floors import keep_floors
from ._groups import grouped_weights
from ._harmony import harmony, heldout_harmony
from ._linalg import Array, cosines, on_simplex
from ._options import check_names, floors_K, groups_K, named_options, priorities_K
from ._registry import get_rule
from ._rule import check_gram
from ._schedule import Schedule
from ._solution import Solution


class Harmoniser:
    """Turns the Gram matrix of K reward gradients into the K coefficients of a step.

    method, options: the rule and its own options (see `get_rule`).
    names: the rewards, in the order of the Gram matrix.
    n, probe, consolidate, total_steps: see `Schedule`.
    rho: ᾱ ← ρᾱ + (1−ρ)α* at a refresh, from ᾱ = 1/K.
    amortise: coefficients between refreshes. "paper": c = ᾱ; "normalised": c_k = ᾱ_k n̄/‖g_k‖
        with the norms of the last refresh. The same for rules that act on raw gradients.
    refresh_with: a refresh step itself takes α* ("raw", the published full step) or ᾱ ("ema").
    priorities: π_k by name (default 1). For min-norm rules the solve sees g_k/π_k, which makes
        the cosines proportional to π; other rules take π as their preference.
    floors: the least cosine of the direction with a reward, by name; see `keep_floors`. They bind
        the solve, α*, and so the refresh step (with refresh_with="raw").
    groups: label → reward names; see `grouped_weights`.
    ridge: added to the diagonal of the normalised Gram (0.02–0.1 calms near-duplicates).

    A reward is silent when it is not active or its gradient is zero: it leaves the solve, gets
    coefficient 0 and keeps ᾱ_k; notes name it. With all rewards silent all coefficients are 0.
    """

    def __init__(
        self,
        method: str = "marble",
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
        self.schedule = Schedule(n, probe, consolidate, total_steps)
        self.rho, self.ridge = rho, ridge
        self.amortise, self.refresh_with = amortise, refresh_with
        self.priorities_K = priorities_K(priorities, self.names)
        self.floors_K = floors_K(floors, self.names)
        self.group_K = groups_K(groups, self.names)
        k = len(self.names)
        self._ema_K = np.full(k, 1.0 / k)
        self._raw_K = np.full(k, 1.0 / k)
        self._norms_K = np.full(k, np.nan)

    # -- schedule -------------------------------------------------------------------------------

    @property
    def needs_gram(self) -> bool:
        """Whether the method looks at gradients at all."""
        return self.rule.needs_gram

    def is_refresh(self, step: int) -> bool:
        """Whether optimiser step `step` (from 0) must bring a Gram matrix."""
        return self.needs_gram and self.schedule.is_refresh(step)

    def probe_count(self, micro_batches: int) -> int:
        """How many of a refresh step's micro-batches keep their K gradients and enter the solve."""
        return self.schedule.probe_count(micro_batches)

    # -- steps ----------------------------------------------------------------------------------

    def solve(
        self,
        gram_KK: Array,
        active_K: Array | None = None,
        *,
        heldout: tuple[Array, Array] | None = None,
    ) -> Solution:
        """The full step: solve on this Gram matrix, update ᾱ and the norms.

        active_K: False for a reward without an informative sample in this step.
        heldout: (g_j·g'_k as [K, K], ‖g'_k‖ as [K]) with g' from micro-batches that did not enter
            `gram_KK`; gives `harmony_heldout`.
        With a debiased Gram, or one of averaged gradients, pass that as `gram_KK`: its norms then
        set the coefficients too, which still multiply this step's raw gradients.
        """
        gram = check_gram(gram_KK, self.names)
        norms, cos = cosines(gram)
        active, notes = self._active(active_K, norms)
        if not active.any():
            return self._nothing(cos, norms, (*notes, "All rewards are silent: no step."))
        if self.needs_gram:
            raw, gap, part, more = self._balance(gram, active)
            notes += more
            self._raw_K = raw
            if part.any():
                self._ema_K = update_ema(self._ema_K, raw, part, self.rho)
            self._norms_K = np.where(active, norms, self._norms_K)
        else:
            raw, gap = self._share(active), None
        alpha = raw if self.refresh_with == "raw" or not self.needs_gram else self._share(active)
        c = self.rule.coefficients(alpha, np.where(active, norms, 0.0))
        held = None
        if heldout is not None:
            cross, other = self._check_heldout(heldout)
            held = heldout_harmony(c, gram, cross, other, active)
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
            harmony_heldout=held,
        )

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
            c = self._share(active)
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

    def observe(
        self, reward_means_K: Array, reward_stds_K: Array, counts_K: Array | None = None
    ) -> None:
        """Show the step's reward means and stds (NaN or count 0: not applicable) to the method.

        Only `progress` looks at them; for all others this does nothing.
        """
        self.rule.observe(reward_means_K, reward_stds_K, counts_K)

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON types; floats survive a JSON round trip exactly."""
        return {
            "method": self.rule.name,
            "names": list(self.names),
            "ema": self._ema_K.tolist(),
            "raw": self._raw_K.tolist(),
            "norms": [None if np.isnan(v) else float(v) for v in self._norms_K],
            "rule": self.rule.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`; refuses the state of another method or other rewards."""
        for key, mine in (("method", self.rule.name), ("names", list(self.names))):
            if state.get(key) != mine:
                raise CheckpointError(
                    f"The saved balance state has {key} {state.get(key)!r}, this run {mine!r}. "
                    "Resume with the same balance.method and rewards, or start without the state."
                )
        self._ema_K = np.array(state["ema"], dtype=np.float64)
        self._raw_K = np.array(state["raw"], dtype=np.float64)
        self._norms_K = np.array(
            [np.nan if v is None else v for v in state["norms"]], dtype=np.float64
        )
        self.rule.load_state_dict(state["rule"])

    # -- parts ----------------------------------------------------------------------------------

    def _alpha(self) -> Array:
        """ᾱ, or the weights of a rule that has no solve."""
        if self.needs_gram:
            return self._ema_K.copy()
        return self.rule.current(self.priorities_K)

    def _share(self, active: Array) -> Array:
        """ᾱ with the weight of the silent rewards handed to the active ones."""
        return _spread(self._alpha(), active)

    def _known_norms(self) -> Array:
        """Norms of the last refresh; the mean of the known ones is the guess for an unknown one."""
        known = np.isfinite(self._norms_K)
        return np.where(known, self._norms_K, self._norms_K[known].mean() if known.any() else 1.0)

    def _balance(
        self, gram: Array, active: Array
    ) -> tuple[Array, float | None, Array, tuple[str, ...]]:
        """α* on the active rewards, its gap, the rewards that took part, and notes."""
        index = np.flatnonzero(active)
        matrix = gram[np.ix_(index, index)]
        matrix = cosines(matrix)[1] if self.rule.normalise else matrix
        solved = matrix + self.ridge * np.diag(np.diagonal(matrix))
        priorities = self.priorities_K[index]
        preference = priorities / priorities.mean()
        notes: tuple[str, ...] = ()
        part = active.copy()
        if self.group_K is None:
            answer = self.rule.weights(solved, preference)
        else:
            answer, took_part = grouped_weights(self.rule, solved, preference, self.group_K[index])
            part[index[~took_part]] = False
            if not took_part.all():
                notes += (f"Cancelled inside their group: {self._list(index[~took_part])}.",)
        weights = answer.alpha
        floors = self.floors_K[index]
        if not np.isnan(floors).all():
            floored = keep_floors(weights, matrix, floors, priorities)
            weights = floored.alpha
            notes += self._relaxed(index, floors, floored.floors)
        raw = np.zeros(len(gram))
        raw[index] = on_simplex(weights)
        return raw, answer.gap, part, notes

    def _relaxed(self, index: Array, wanted: Array, kept: Array) -> tuple[str, ...]:
        notes = []
        for k, before, after in zip(index, wanted, kept):
            if np.isnan(before) or before == after:
                continue
            became = "given up" if np.isnan(after) else f"relaxed to {after:.3g}"
            notes.append(
                f"Floors cannot all hold: that of {self.names[k]} ({before:.3g}) is {became}."
            )
        return tuple(notes)

    def _active(self, active_K: Array | None, norms: Array | None) -> tuple[Array, tuple[str, ...]]:
        k = len(self.names)
        active = np.ones(k, dtype=bool) if active_K is None else np.array(active_K, dtype=bool)
        if active.shape != (k,):
            raise MarbleError(f"active_K must have shape ({k},), got {active.shape}.")
        if norms is not None:
            active &= norms > 0.0
        silent = np.flatnonzero(~active)
        return active, (f"Silent: {self._list(silent)}.",) if len(silent) else ()

    def _nothing(self, cos: Array, norms: Array, notes: tuple[str, ...]) -> Solution:
        zero = np.zeros(len(self.names))
        none = np.zeros(len(self.names), dtype=bool)
        calm = {"min": 0.0, "mean": 0.0, "var": 0.0, "conflict": 0.0}
        return Solution(
            zero, self._alpha(), zero.copy(), norms, none, self.needs_gram, notes, cos, 0.0, calm
        )

    def _check_heldout(self, heldout: tuple[Array, Array]) -> tuple[Array, Array]:
        k = len(self.names)
        cross, norms = (np.asarray(part, dtype=np.float64) for part in heldout)
        if cross.shape != (k, k) or norms.shape != (k,):
            raise MarbleError(
                f"heldout must be ([{k}, {k}], [{k}]): products g_j·g'_k and norms ‖g'_k‖; "
                f"got {cross.shape} and {norms.shape}."
            )
        bad = ~(np.isfinite(cross).all(axis=0) & np.isfinite(norms))
        if bad.any():
            raise MarbleError(f"The held-out gradient of {self._list(bad)} is not finite.")
        return cross, norms

    def _list(self, which: Array) -> str:
        return ", ".join(np.array(self.names)[which])


def _spread(alpha: Array, active: Array) -> Array:
    held = np.where(active, alpha, 0.0)
    total = held.sum()
    return held / total if total > 1e-12 else active / active.sum()
