"""`Balancer`: many rewards, one step. Drop it into a loop between the rewards and the optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from marble.balance.batch import Batch, make_batch
from marble.balance.gates import Gate, all_rewards
from marble.balance.gradients import Gradients, norms_of
from marble.balance.plan import Plan
from marble.balance.report import Decision
from marble.balance.rows import StepRows
from marble.balance.settings import (
    Target,
    check_kinds,
    check_settings,
    reward_weights,
    rule_options,
    target_of,
)
from marble.harmonise import (
    DEFAULT,
    Harmoniser,
    Solution,
    direction_cosines,
    heldout_cosines,
    rule_class,
    summarise,
)
from marble.jacobian import Jacobian
from marble.objectives import Objective
from marble.objectives.registry import Default


class Balancer:
    """Combines K rewards into one gradient, by any method, over any number of processes.

        balancer = Balancer(model, ["ocr", "clip"], method="marble")
        batch = balancer.batch(rewards_KN, group_N)           # NaN = the reward does not apply
        plan = balancer.begin_step(batch, step, micro_batches=len(parts))
        for index in parts:
            with plan.recording():
                v = model(x_t[index], t[index])
            point = Point(x_t[index], t[index], x_0[index], v_old=v_old[index])
            plan.backward(v, point, index)
        report = plan.finish()                                 # the gradient is in .grad
        optimiser.step()

    method: a rule by name (see `marble.harmonise.RULES`) or your own as `module:Class`.
        Two rewards under `marble` have α = (½, ½) in every step: the point of least norm between
        two unit vectors is the middle. `priorities` and `progress` weight two rewards differently.
    objective: the loss; `marble.objectives` has them.
    target: balance whole gradients ("full", as published) or only their reward-driven part
        ("reward"; the default where the objective has a pull that is common to all rewards). That
        part then has the size of a single reward's advantages, whatever the coefficients and
        however much the rewards cancel: the common pull, a trust region, is as strong for every
        method.
    probe: the share of a refresh step's micro-batches that enter the solve, or that are measured.
    measure_every: steps between measurements of the geometry for methods that need no Gram matrix;
        0 leaves it out. Gram methods measure on each refresh.
    heldout: also measure conflict out of sample: solve on half of the micro-batches, look at the
        other half. Needs a second set of K accumulators.
    shares: for each reward, which entries of the parameters are its own (bool, by parameter), for
        a rule that trains these apart (`Rule.own`).
    gate: which rewards take part in a step; a pure function of the step (see `gates`).
    drop_silent: a reward without an informative sample leaves the step.
    masks: False counts "does not apply" as a score of 0, which dilutes specialised rewards; only
        for comparison.
    Further keywords (`rho`, `amortise`, `priorities`, `floors`, `groups`, `ridge`, `consolidate`,
    `hybrid`, `options` …) go to `Harmoniser`.

    Under DDP or with plain replicas every process calls the same methods, with its own
    micro-batches (any number, also none); `finish` sums. The gradient of a step is a sum over all
    samples with the counts of the whole step, so nothing depends on how samples are dealt out.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        *,
        method: str = DEFAULT,
        objective: Objective | None = None,
        weights: Mapping[str, float] | None = None,
        std: Literal["batch", "group"] = "batch",
        target: Target | None = None,
        every: int = 10,
        measure_every: int = 0,
        heldout: bool = False,
        drop_silent: bool = True,
        masks: bool = True,
        gate: Gate | None = None,
        seed: int = 0,
        shares: Sequence[Mapping[nn.Parameter, Tensor]] = (),
        **harmoniser: Any,
    ) -> None:
        self.objective = objective or Default()
        check_kinds(model, names, self.objective)
        rule, target = rule_class(method), target_of(target, self.objective)
        check_settings(model, rule, self.objective, target, gate)
        self.names, self.k, self.method = list(names), len(names), method
        self.merges = rule.merges
        self.target: Target = target
        self.std, self.drop_silent, self.masks = std, drop_silent, masks
        self.measure_every, self.heldout = measure_every, heldout
        self.scale = 1.0  # of the cotangents; fp16 training raises it
        self.weights_K = reward_weights(weights, self.names)
        options = rule_options(rule, self.names, self.weights_K, harmoniser.pop("options", None))
        self.harmoniser = Harmoniser(method, self.names, n=every, options=options, **harmoniser)
        self.gate = gate or self.harmoniser.rule.gate(self.k, seed) or all_rewards(self.k)
        own = self.harmoniser.rule.own
        self.gradients = Gradients(model, self.names, halves=heldout, shares=shares, own=own)
        self._measured = False
        if self.harmoniser.needs_gram or measure_every:
            _ = self.jacobian  # an uncovered parameter is refused now, not at the first refresh

    @property
    def jacobian(self) -> Jacobian:
        return self.gradients.jacobian

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self.gradients.parameters

    # -- a step -----------------------------------------------------------------------------------

    def batch(
        self,
        rewards_KN: Tensor | np.ndarray,
        group_N: Tensor | np.ndarray,
        prefer_KN: Tensor | np.ndarray | None = None,
    ) -> Batch:
        """Advantages of samples (all processes' samples, in the same order everywhere).

        prefer_KN: how much each reward counts for each sample, on top of the coefficients; 1 is
        as without.
        """
        rewards = torch.as_tensor(rewards_KN)
        return make_batch(
            rewards if self.masks else torch.where(rewards.isnan(), 0.0, rewards),
            group_N,
            names=self.names,
            weights_K=self.weights_K,
            merge=self.merges or "rewards",
            std=self.std,
            a_max=self.objective.options.a_max,
            prefer_KN=prefer_KN,
        )

    def measures(self, step: int) -> bool:
        """Whether the K gradients are taken at this step."""
        return self.gradients.apart or self._looks(step)

    def _looks(self, step: int) -> bool:
        """Whether their geometry is looked at, too."""
        if self.harmoniser.needs_gram:
            return self.harmoniser.is_refresh(step)
        return self.measure_every > 0 and step % self.measure_every == 0

    def begin_step(self, batch: Batch, step: int, *, micro_batches: int, pairs: int = 1) -> Plan:
        """The plan of optimiser step `step`, for `micro_batches` calls of `backward` here.

        `pairs`: how many (sample, timestep) pairs each sample of the batch is trained on.
        """
        adv = batch.adv
        counts_K = adv.counts_K.valid.numpy()
        seen_KN = adv.adv_KN if batch.seen_KN is None else batch.seen_KN
        self.harmoniser.observe(batch.means_K, batch.stds_K, counts_K, seen_KN.numpy())
        # At least one: a process without samples still joins the solve.
        recorded = self.harmoniser.probe_count(micro_batches) if self.measures(step) else 0
        if self.gradients.apart:  # the rest could not be told apart
            recorded = max(1, micro_batches)
        active_K = self.active(batch, step)
        return Plan(
            StepRows.of(batch, self.objective, pairs),
            self.objective,
            self.gradients,
            lambda measured: self._decide(step, active_K, measured),
            pairs=pairs,
            recorded=recorded,
            target=self.target,
            scale=self.scale,
        )

    def active(self, batch: Batch, step: int) -> np.ndarray:
        """The rewards that take part in this step; silent is one that tells no samples apart."""
        adv, valid = batch.adv.adv_KN, batch.adv.valid_KN
        alive = (valid & (adv != 0) if self.drop_silent else valid).any(1).numpy()
        return np.asarray(alive & self.gate(step))

    def applied(self, delta: Mapping[nn.Parameter, Tensor]) -> dict[str, float] | None:
        """Harmony of the step as the optimiser took it, cos(−Δθ, g_k); None if unmeasured."""
        if not self._measured:
            return None
        flat = self.jacobian.flatten(delta)
        length = float(flat.double().norm())
        norms = norms_of(self.gradients.gram())[: self.k]
        inner = -self.jacobian.dot(flat).numpy()[: self.k]
        cos = inner / np.maximum(norms * length, 1e-300)
        return summarise(np.clip(cos, -1, 1), norms > 0) if length > 0 else None

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"harmoniser": self.harmoniser.state_dict(), "scale": self.scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.harmoniser.load_state_dict(state["harmoniser"])
        self.scale = float(state["scale"])

    # -- coefficients -----------------------------------------------------------------------------

    def _decide(self, step: int, active_K: np.ndarray, measured: bool) -> Decision:
        """Coefficients of a step and, where its gradients were recorded, their geometry."""
        self._measured = measured and self._looks(step)
        if not self._measured:
            return self._decision(self.harmoniser.cached(step, active_K))
        gram = self.gradients.gram()
        if self.harmoniser.needs_gram:
            solution = self.harmoniser.solve(gram[: self.k, : self.k], active_K)
        else:
            solution = self.harmoniser.cached(step, active_K)
        return self._with_geometry(solution, gram, active_K)

    def _decision(self, solution: Solution, harmony: dict[str, float] | None = None) -> Decision:
        return Decision(solution, self._direction(solution), self.merges is not None, harmony)

    def _direction(self, solution: Solution) -> np.ndarray:
        """The step's direction as coefficients of the Jacobian's rows: K rewards and their sum."""
        if self.merges:
            return np.append(np.zeros(self.k), float(solution.active_K.any()))
        return np.append(solution.coefficients_K, 0.0)

    def _with_geometry(
        self, solution: Solution, gram: np.ndarray, active_K: np.ndarray
    ) -> Decision:
        k, norms = self.k, norms_of(gram)
        present = (norms > 0)[:k] & active_K
        scale = np.where(norms > 0, norms, 1.0)
        cos = np.clip(gram / scale[:, None] / scale[None, :], -1, 1)[:k, :k]
        total = np.append(np.zeros(k), 1.0)
        of_sum = summarise(direction_cosines(total, gram)[:k], present)
        solution = replace(
            solution,
            norms_K=norms[:k],
            cos_KK=cos,
            harmony=summarise(direction_cosines(self._direction(solution), gram)[:k], present),
            harmony_heldout=self._heldout(solution, present) if self.heldout else None,
        )
        return self._decision(solution, of_sum)

    def _heldout(self, solution: Solution, present: np.ndarray) -> dict[str, float] | None:
        """The rule's direction on one half of the samples against the gradients of the other."""
        if not self.gradients.has_halves:
            return None
        k, halves = self.k, ((0, 0), (0, 1), (1, 1))
        first, cross, second = (self.gradients.half_gram(*ab) for ab in halves)
        if self.harmoniser.needs_gram:
            c = self.harmoniser.trial(first[:k, :k], present)
            solution = replace(solution, coefficients_K=c)
        other = norms_of(second)
        cos = heldout_cosines(self._direction(solution), first, cross, other)
        return summarise(cos[:k], present & (other[:k] > 0))
