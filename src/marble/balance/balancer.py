"""`Balancer`: many rewards, one step. Drop it into a loop between the rewards and the optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from marble.balance.batch import Batch, make_batch
from marble.balance.gates import Gate, gate_for
from marble.balance.plan import Plan
from marble.balance.settings import MERGED, check_settings, reward_weights, rule_of
from marble.harmonise import (
    DebiasedGram,
    Harmoniser,
    Solution,
    debiased_gram,
    direction_cosines,
    heldout_cosines,
    summarise,
)
from marble.jacobian import Jacobian, adam_metric
from marble.objectives import NFT


class Balancer:
    """Combines K rewards into one gradient, by any method, over any number of processes.

        balancer = Balancer(model, ["ocr", "clip"], method="marble")
        batch = balancer.batch(rewards_KN, group_N)           # NaN = the reward does not apply
        plan = balancer.begin_step(batch, step, micro_batches=len(parts))
        for index in parts:
            with plan.recording():
                v = model(x_t[index], t[index])
            plan.backward(v, v_old[index], x_t[index], x_0[index], t[index], index)
        report = plan.finish()                                 # the gradient is in .grad
        optimiser.step()

    method: a Gram method (`marble`, `mgda`, `upgrad`, …), `uniform`, `fixed`, `progress`, or
        `weighted_sum`, `gdpo` (merged before the gradient), `single`, `dropout`, `sequential`.
        Two rewards under `marble` have α = (½, ½) in every step: the point of least norm between
        two unit vectors is the middle. `priorities` and `progress` weight two rewards differently.
    target: balance whole gradients ("full") or only their reward-driven part ("reward").
    probe: the share of a refresh step's micro-batches that enter the solve.
    measure_every: steps between measurements of the geometry for methods that need no Gram matrix;
        0 leaves it out. Gram methods measure on each refresh.
    heldout: also measure conflict out of sample: solve on half of the micro-batches, look at the
        other half. Needs a second set of K accumulators.
    metric: "adam" takes the Gram matrix in Adam's metric (give `optimizer`); plain until the
        optimiser has stepped once.
    gradient_ema: decay of a moving average of the K gradients, whose Gram matrix is solved.
    debias: norms and cosines from products across halves of the step's micro-batches.
    gate: which rewards take part in a step; a pure function of the step (see `gates`).
    drop_silent: a reward without an informative sample leaves the step.
    masks: False counts "does not apply" as a score of 0, which dilutes specialised rewards; only
        for comparison.
    Further keywords (`rho`, `amortise`, `priorities`, `floors`, `groups`, `ridge`, `consolidate`,
    `hybrid`, `snr`, `options` …) go to `Harmoniser`.

    Under DDP or with plain replicas every process calls the same methods, with its own
    micro-batches (any number, also none); `finish` sums. The gradient of a step is a sum over all
    samples with the counts of the whole step, so nothing depends on how samples are dealt out.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        *,
        method: str = "marble",
        objective: NFT | None = None,
        weights: Mapping[str, float] | None = None,
        std: Literal["batch", "group"] = "batch",
        target: Literal["full", "reward"] = "full",
        every: int = 10,
        measure_every: int = 0,
        heldout: bool = False,
        debias: bool = False,
        gradient_ema: float = 0.0,
        metric: Literal["plain", "adam"] = "plain",
        optimizer: torch.optim.Optimizer | None = None,
        drop_silent: bool = True,
        masks: bool = True,
        gate: Gate | None = None,
        seed: int = 0,
        **harmoniser: Any,
    ) -> None:
        check_settings(model, method, target, metric, optimizer, debias, gradient_ema, gate)
        self.names, self.k = list(names), len(names)
        self.method, self.merged = method, method in MERGED
        self.objective = objective or NFT()
        self.target: Literal["full", "reward"] = target
        self.std, self.drop_silent, self.masks = std, drop_silent, masks
        self.measure_every = measure_every
        self.debias, self.gradient_ema, self.metric = debias, gradient_ema, metric
        self.optimizer = optimizer
        self.scale = 1.0  # of the cotangents; fp16 training raises it
        self.weights_K = reward_weights(weights, self.names)
        self.gate = gate or gate_for(method, self.k, seed)
        rule, options = rule_of(method, self.names, self.weights_K, harmoniser.pop("options", None))
        self.harmoniser = Harmoniser(rule, self.names, n=every, options=options, **harmoniser)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.heldout = heldout
        self._model = model
        self._jacobian: Jacobian | None = None
        self.sum_harmony: dict[str, float] | None = None
        if self.harmoniser.needs_gram or measure_every:
            _ = self.jacobian  # an uncovered parameter is refused now, not at the first refresh

    @property
    def jacobian(self) -> Jacobian:
        if self._jacobian is None:
            self._jacobian = Jacobian(
                self._model,
                self.k + 1,  # one further row, at next to no cost: what the sum would have done
                names=[*self.names, "weighted sum"],
                target=self.target,
                slots=2 if self.heldout or self.debias or self.harmoniser.steer.snr else 1,
            )
        return self._jacobian

    # -- a step -----------------------------------------------------------------------------------

    def batch(self, rewards_KN: Tensor | np.ndarray, group_N: Tensor | np.ndarray) -> Batch:
        """Advantages of samples (all processes' samples, in the same order everywhere)."""
        rewards = torch.as_tensor(rewards_KN)
        return make_batch(
            rewards if self.masks else torch.where(rewards.isnan(), 0.0, rewards),
            group_N,
            names=self.names,
            weights_K=self.weights_K,
            merge="gdpo" if self.method == "gdpo" else "weighted_sum",
            std=self.std,
            a_max=self.objective.a_max,
        )

    def measures(self, step: int) -> bool:
        """Whether the K gradients are taken at this step."""
        if self.harmoniser.needs_gram:
            return self.harmoniser.is_refresh(step)
        return self.measure_every > 0 and step % self.measure_every == 0

    def begin_step(self, batch: Batch, step: int, *, micro_batches: int, pairs: int = 1) -> Plan:
        """The plan of optimiser step `step`, for `micro_batches` calls of `backward` here.

        `pairs`: how many (sample, timestep) pairs each sample of the batch is trained on.
        """
        if self._jacobian is not None:
            self._jacobian.zero()
        adv = batch.adv
        counts_K = adv.counts_K.valid.numpy()
        self.harmoniser.observe(batch.means_K, batch.stds_K, counts_K, adv.adv_KN.numpy())
        recorded = 0
        if self.measures(step):
            recorded = max(1, micro_batches)  # a process without samples still joins the solve
            if self.harmoniser.needs_gram:
                recorded = self.harmoniser.probe_count(micro_batches)
        return Plan(self, batch, step, pairs, recorded)

    def applied(self, delta: Mapping[nn.Parameter, Tensor]) -> dict[str, float] | None:
        """Harmony of the step as the optimiser took it, cos(−Δθ, g_k); None if unmeasured."""
        if self._jacobian is None or self.sum_harmony is None:
            return None
        flat = self.jacobian.flatten(delta)
        length = float(flat.double().norm())
        norms = _norms(self._gram())[: self.k]
        inner = -self.jacobian.dot(flat).numpy()[: self.k]
        cos = inner / np.maximum(norms * length, 1e-300)
        return summarise(np.clip(cos, -1, 1), norms > 0) if length > 0 else None

    # -- what a plan asks -------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    def no_sync(self) -> AbstractContextManager[Any]:
        """`finish` sums gradients over processes once, so DDP must not do it in every backward."""
        context = getattr(self._model, "no_sync", None)
        return context() if callable(context) else nullcontext()

    def active(self, batch: Batch, step: int) -> np.ndarray:
        """The rewards that take part in this step; silent is one that tells no samples apart."""
        adv, valid = batch.adv.adv_KN, batch.adv.valid_KN
        alive = (valid & (adv != 0) if self.drop_silent else valid).any(1).numpy()
        return np.asarray(alive & self.gate(step))

    def ordinary(self, step: int, active_K: np.ndarray) -> Solution:
        """Coefficients of a step without a solve."""
        self.sum_harmony = None
        return self.harmoniser.cached(step, active_K)

    def reduce(self) -> None:
        """Sums the recorded gradients over processes and takes the loss scale out of them."""
        self.jacobian.reduce()
        if self.scale != 1:
            for rows in (self.jacobian.rows, self.jacobian.outside):
                if rows is not None:
                    rows.data.div_(self.scale)

    def not_finite(self) -> list[str]:
        """Names of the rewards whose recorded gradient is not finite."""
        largest = torch.linalg.vector_norm(self.jacobian.rows.data, torch.inf, dim=2)
        finite = largest.isfinite().all(0)[: self.k].tolist()
        return [name for name, good in zip(self.names, finite) if not good]

    def solve(self, plan: Plan) -> Solution:
        """Coefficients from the plan's recorded gradients, and their geometry."""
        active, gram = plan.active_K, self._gram()
        if self.harmoniser.needs_gram:
            to_solve, signal, notes = self._gram_to_solve(plan, gram)
            solution = self.harmoniser.solve(to_solve, active, signal_K=signal)
            solution = replace(solution, notes=solution.notes + notes)
        else:
            solution = self.harmoniser.cached(plan.step, active)
        return self._with_geometry(solution, gram, plan)

    def direction(self, solution: Solution) -> np.ndarray:
        """The step's direction as coefficients of the Jacobian's rows: K rewards and their sum."""
        if self.merged:
            return np.append(np.zeros(self.k), float(solution.active_K.any()))
        return np.append(solution.coefficients_K, 0.0)

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON; the gradient averages, which are tensors, are in `tensors`."""
        return {"harmoniser": self.harmoniser.state_dict(), "scale": self.scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.harmoniser.load_state_dict(state["harmoniser"])
        self.scale = float(state["scale"])

    def tensors(self) -> dict[str, Tensor]:
        ema = None if self._jacobian is None else self._jacobian.state_dict()["ema"]
        return {} if ema is None else dict(ema)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            self.jacobian.load_state_dict({"ema": dict(tensors)})

    # -- inside -----------------------------------------------------------------------------------

    def _gram(self, slots: tuple[int, int] | None = None, **options: Any) -> np.ndarray:
        return self.jacobian.gram(slots=slots, **options).numpy()

    def _gram_to_solve(
        self, plan: Plan, gram: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
        """The Gram matrix the rule is to see, the share of signal in its norms, and notes."""
        options: dict[str, Any] = {}
        if self.metric == "adam" and self.optimizer is not None and self.optimizer.state:
            options["metric"] = adam_metric(self.optimizer)
        debiased: DebiasedGram | None = None
        notes: tuple[str, ...] = ()
        if self.debias or self.harmoniser.steer.snr:
            if (plan.share_RS > 0).any(0).all():
                blocks, lone = self._across_halves(plan, **options)
                debiased = debiased_gram(blocks)
                debiased = replace(debiased, signal_K=np.where(lone, np.nan, debiased.signal_K))
            else:
                notes = ("Telling signal from noise needs two micro-batches of different samples.",)
        signal = None if debiased is None else debiased.signal_K
        if self.debias and debiased is not None:
            return debiased.gram_KK, signal, notes
        if self.gradient_ema:
            everyone = torch.as_tensor(np.append(plan.active_K, True))
            self.jacobian.smooth(self.gradient_ema, everyone)
            options["ema"] = True
        return (self._gram(**options) if options else gram)[: self.k, : self.k], signal, notes

    def _across_halves(self, plan: Plan, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """Products across the halves, [2, 2, K, K], and the rewards that only one half knows.

        Those have the same gradient in both: nothing tells their signal from noise.
        """
        pairs = [[self._half_gram(plan, a, b, **options) for b in (0, 1)] for a in (0, 1)]
        blocks = np.array(pairs)[..., : self.k, : self.k]
        absent = plan.share_RS.numpy()[: self.k] == 0
        lone = absent.any(axis=1) & ~absent.all(axis=1)
        for a in (0, 1):
            blocks[a][:, lone & absent[:, a]] = blocks[1 - a][:, lone & absent[:, a]]
        for a in (0, 1):
            blocks[:, a][..., lone & absent[:, a]] = blocks[:, 1 - a][..., lone & absent[:, a]]
        return blocks, lone

    def _half_gram(self, plan: Plan, a: int, b: int, **options: Any) -> np.ndarray:
        """Products of the *mean* gradients of two halves: slots hold sums over part of the step."""
        share = plan.share_RS.numpy()
        safe = np.where(share > 0, share, 1.0)
        return np.asarray(self._gram((a, b), **options) / safe[:, None, a] / safe[None, :, b])

    def _with_geometry(self, solution: Solution, gram: np.ndarray, plan: Plan) -> Solution:
        k, norms = self.k, _norms(gram)
        present = (norms > 0)[:k] & plan.active_K
        scale = np.where(norms > 0, norms, 1.0)
        cos = np.clip(gram / scale[:, None] / scale[None, :], -1, 1)[:k, :k]
        total = np.append(np.zeros(k), 1.0)
        self.sum_harmony = summarise(direction_cosines(total, gram)[:k], present)
        return replace(
            solution,
            norms_K=norms[:k],
            cos_KK=cos,
            harmony=summarise(direction_cosines(self.direction(solution), gram)[:k], present),
            harmony_heldout=self._heldout(solution, present, plan) if self.heldout else None,
        )

    def _heldout(
        self, solution: Solution, present: np.ndarray, plan: Plan
    ) -> dict[str, float] | None:
        """The rule's direction on one half of the samples against the gradients of the other."""
        if not (plan.share_RS > 0).any(0).all():
            return None
        k = self.k
        first, cross, second = (self._half_gram(plan, *ab) for ab in ((0, 0), (0, 1), (1, 1)))
        if self.harmoniser.needs_gram:
            c = self.harmoniser.trial(first[:k, :k], present)
            solution = replace(solution, coefficients_K=c)
        other = _norms(second)
        cos = heldout_cosines(self.direction(solution), first, cross, other)
        return summarise(cos[:k], present & (other[:k] > 0))


def _norms(gram: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.maximum(np.diagonal(gram), 0.0)))
