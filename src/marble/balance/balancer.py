"""`Balancer`: many rewards, one step. Drop it into a loop between the rewards and the optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from marble.balance.batch import Batch, make_batch
from marble.balance.gates import Gate, gate_for
from marble.balance.plan import Plan
from marble.errors import MarbleError
from marble.harmonise import (
    Harmoniser,
    Solution,
    debiased_gram,
    direction_cosines,
    heldout_cosines,
    summarise,
)
from marble.jacobian import Jacobian, adam_metric
from marble.objectives import NFT

MERGED = ("weighted_sum", "gdpo")


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
    target: balance whole gradients ("full") or only their reward-driven part ("reward").
    probe: the share of a refresh step's micro-batches that enter the solve.
    measure_every: steps between measurements of the geometry for methods that need no Gram matrix;
        0 leaves it out. Gram methods measure on each refresh.
    heldout: also measure conflict out of sample: solve on half of the micro-batches, look at the
        other half. Needs a second set of K accumulators.
    metric: "adam" takes the Gram matrix in Adam's metric (give `optimizer`).
    drop_silent: a reward without an informative sample leaves the step.
    Further keywords (`rho`, `amortise`, `priorities`, `floors`, `groups`, `ridge`, `consolidate`,
    `options` …) go to `Harmoniser`.
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
        gate: Gate | None = None,
        seed: int = 0,
        **harmoniser: Any,
    ) -> None:
        self.names, self.k = list(names), len(names)
        self.method, self.merged = method, method in MERGED
        self.objective = objective or NFT()
        self.target: Literal["full", "reward"] = target
        self.std, self.drop_silent = std, drop_silent
        self.measure_every = measure_every
        self.debias, self.gradient_ema, self.metric = debias, gradient_ema, metric
        self.optimizer = optimizer
        self.scale = 1.0  # of the cotangents; fp16 training raises it
        self.weights_K = _weights(weights, self.names)
        self.gate = gate or gate_for(method, self.k, seed)
        rule, options = _rule(method, self.names, self.weights_K, harmoniser.pop("options", None))
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
                slots=2 if self.heldout or self.debias else 1,
            )
        return self._jacobian

    # -- a step -----------------------------------------------------------------------------------

    def batch(self, rewards_KN: Tensor | np.ndarray, group_N: Tensor | np.ndarray) -> Batch:
        """Advantages of samples (all processes' samples, in the same order everywhere)."""
        return make_batch(
            rewards_KN,
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
        self.harmoniser.observe(batch.means_K, batch.stds_K, batch.adv.counts_K.valid.numpy())
        recorded = 0
        if self.measures(step):
            recorded = max(1, micro_batches)  # a process without samples still joins the solve
            if self.harmoniser.needs_gram:
                recorded = self.harmoniser.schedule.probe_count(micro_batches)
        return Plan(self, batch, step, micro_batches, pairs, recorded)

    def applied(self, delta: Mapping[nn.Parameter, Tensor]) -> dict[str, float] | None:
        """Harmony of the step as the optimiser took it, cos(−Δθ, g_k); after a measured step."""
        if self._jacobian is None or self.sum_harmony is None:
            return None
        flat = self.jacobian.flatten(delta)
        length = float(flat.double().norm())
        gram = self._gram()
        norms = np.sqrt(np.maximum(np.diagonal(gram)[: self.k], 0))
        inner = -self.jacobian.dot(flat).numpy()[: self.k] / self.scale
        cos = inner / np.maximum(norms * length, 1e-300)
        return summarise(np.clip(cos, -1, 1), norms > 0) if length > 0 else None

    # -- what a plan asks -------------------------------------------------------------------

    def active(self, batch: Batch, step: int) -> np.ndarray:
        """The rewards that take part in this step."""
        counts = batch.adv.counts_K
        alive = (counts.informative if self.drop_silent else counts.valid).numpy() > 0
        return np.asarray(alive & self.gate(step))

    def ordinary(self, step: int, active_K: np.ndarray, batch: Batch) -> Solution:
        """Coefficients of a step without a solve."""
        self.sum_harmony = None
        return self.harmoniser.cached(step, active_K)

    def solve(self, plan: Plan) -> Solution:
        """Coefficients from the plan's recorded gradients, and their geometry."""
        active, gram = plan.active_K, self._gram()
        if self.harmoniser.needs_gram:
            solution = self.harmoniser.solve(self._gram_to_solve(active, gram), active)
        else:
            solution = self.harmoniser.cached(plan.step, active)
        return self._with_geometry(solution, gram, active)

    # -- state ------------------------------------------------------------------------------

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

    # -- inside -----------------------------------------------------------------------------

    def _gram(self, slots: tuple[int, int] | None = None, **options: Any) -> np.ndarray:
        return self.jacobian.gram(slots=slots, **options).numpy() / self.scale**2

    def _gram_to_solve(self, active: np.ndarray, gram: np.ndarray) -> np.ndarray:
        k = self.k
        if self.gradient_ema:
            rows = torch.as_tensor(np.append(active, True))
            self.jacobian.smooth(self.gradient_ema, rows)
            gram = self._gram(ema=True)
        if self.metric == "adam" and self.optimizer is not None and self.optimizer.state:
            gram = self._gram(metric=adam_metric(self.optimizer))
        if self.debias:
            # Slots hold sums over half of the step; the estimate wants means, twice as long.
            blocks = [[4 * self._gram((a, b))[:k, :k] for b in (0, 1)] for a in (0, 1)]
            return debiased_gram(np.array(blocks)).gram_KK
        return gram[:k, :k]

    def direction(self, coefficients_K: np.ndarray) -> np.ndarray:
        """The step's direction as coefficients of the Jacobian's rows."""
        if self.merged:
            return np.append(np.zeros(self.k), 1.0)
        return np.append(coefficients_K, 0.0)

    def _with_geometry(self, solution: Solution, gram: np.ndarray, active: np.ndarray) -> Solution:
        k, norms = self.k, np.sqrt(np.maximum(np.diagonal(gram), 0.0))
        present = (norms > 0)[:k] & active
        scale = np.where(norms > 0, norms, 1.0)
        cos = (gram / np.outer(scale, scale))[:k, :k]
        row = self.direction(solution.coefficients_K)
        total = np.append(np.zeros(k), 1.0)
        self.sum_harmony = summarise(direction_cosines(total, gram)[:k], present)
        return replace(
            solution,
            norms_K=norms[:k],
            cos_KK=cos,
            harmony=summarise(direction_cosines(row, gram)[:k], present),
            harmony_heldout=self._heldout(row, present) if self.heldout else None,
        )

    def _heldout(self, row: np.ndarray, present: np.ndarray) -> dict[str, float]:
        """The rule's direction on the first half of the micro-batches against the second half."""
        k = self.k
        first, cross, second = (self._gram(pair) for pair in ((0, 0), (0, 1), (1, 1)))
        if self.harmoniser.needs_gram:
            own = first[:k, :k] * np.outer(present, present)
            norms = np.sqrt(np.maximum(np.diagonal(own), 0.0))
            rule = self.harmoniser.rule
            row = self.direction(rule.coefficients(rule(own).alpha, norms))
        other = np.sqrt(np.maximum(np.diagonal(second), 0.0))
        return summarise(heldout_cosines(row, first, cross, other)[:k], present & (other[:k] > 0))


def _weights(weights: Mapping[str, float] | None, names: Sequence[str]) -> Tensor:
    unknown = [name for name in weights or {} if name not in names]
    if unknown:
        raise MarbleError(f"weights: there is no reward {unknown[0]!r}; known: {', '.join(names)}.")
    return torch.tensor(
        [float((weights or {}).get(name, 1.0)) for name in names], dtype=torch.float64
    )


def _rule(
    method: str, names: Sequence[str], weights_K: Tensor, options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """The harmoniser's rule behind a method; gated and merged ones have constant weights."""
    if method in MERGED or method == "fixed":
        return "fixed", {"weights": dict(zip(names, weights_K.tolist())), **(options or {})}
    if method in ("single", "dropout", "sequential"):
        return "uniform", dict(options or {})
    return method, dict(options or {})
