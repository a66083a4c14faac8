"""All K per-reward gradients of one optimiser step, from two backward passes per micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from marble.errors import MarbleError
from marble.jacobian import store
from marble.jacobian.layers import Span, accumulator_dtype, add_to_grad, find_spans
from marble.jacobian.passes import Faults, Term, plan
from marble.jacobian.recorder import Recorder
from marble.jacobian.store import Rows


class Jacobian:
    """Accumulates K gradients ``g_k = Σ_terms Σ_i weight_ki · cotangent_i · ∂v_i/∂θ``.

    A term is a direction per sample with K weights: for a loss ``a·L⁺ + b·L⁻`` the two directions
    are ∂L⁺/∂v and ∂L⁻/∂v, or any two combinations of them. One backward pass per term gives
    per-sample LoRA gradients, contracted layer by layer with the term's K×B weights. The time
    does not depend on K; the memory is K accumulators of LoRA size.

    What is not balanced, such as a KL, goes to the *outside* row.

    ``slots`` > 1 keeps independent parts of the step apart (see `backward`): the step's gradient
    is their sum, `gram` also gives inner products across them.

    **Several processes.** Build it on the wrapped model, after DDP or FSDP2's ``fully_shard``.
    Every rank accumulates its own micro-batches (no gradient is synchronised) and `reduce` sums
    once. Under FSDP2, ``fully_shard`` every block and the root, LoRA included; the accumulators
    are not sharded: each rank holds K full LoRA-size rows, and `write_grad` gives it its shard.
    As always with FSDP, ranks must run equally many micro-batches. CPU offload is not supported.

    **Compiled models.** Give `recording` the batch size. Compiled parts *without* LoRA layers
    need ``torch._functorch.config.donated_buffer = False`` before they are first compiled.

        jac = Jacobian(model, k=3)
        for batch in micro_batches:
            with jac.recording():
                v = model(...)
            P, N = objective.cotangents(v, ...)
            jac.backward(v, [(P, p_KB), (N, q_KB)])
        jac.reduce()
        jac.write_grad(coefficients(jac.gram()))
        jac.zero()
    """

    def __init__(
        self,
        model: nn.Module,
        k: int,
        *,
        names: Sequence[str] | None = None,
        slots: int = 1,
    ) -> None:
        if k < 1 or slots < 1:
            raise MarbleError(f"Jacobian needs k ≥ 1 and slots ≥ 1, got k={k}, slots={slots}.")
        if names is not None and len(names) != k:
            raise MarbleError(f"Jacobian: {len(names)} names for {k} rewards.")
        self.model = model
        self.k = k
        self.names = list(names) if names is not None else [f"number {i}" for i in range(k)]
        self.slots = slots
        self.spans: list[Span] = find_spans(model)
        self.total = self.spans[-1].stop
        self.dtype = accumulator_dtype(self.spans)
        self.device = self.spans[0].parameter.device
        self.rows = Rows(slots, k, self.total, self.dtype, self.device)
        self.outside: Rows | None = None
        self._recorder = Recorder(self.spans, self.dtype)
        self._faults = Faults(self.names)

    # -- one micro-batch ------------------------------------------------------------------

    @contextmanager
    def recording(self, batch: int | None = None) -> Iterator[None]:
        """Forwards inside can be given to `backward`; outside, the model is as it always was.

        ``batch`` (the number of samples of the forward) is needed only where the model is
        compiled. Every covered layer must see inputs of shape [batch, …, features]. A DDP model
        does not synchronise inside: `reduce` does it once for all K gradients.
        """
        with ExitStack() as stack:
            no_sync = getattr(self.model, "no_sync", None)
            if callable(no_sync):
                stack.enter_context(no_sync())
            # Two backward passes over one compiled graph: it must not recycle saved tensors.
            stack.enter_context(functorch_config.patch(donated_buffer=False))
            stack.enter_context(self._recorder.layers(batch))
            yield

    def backward(
        self,
        v: Tensor,
        terms: Sequence[Term],
        *,
        outside: Tensor | None = None,
        slot: int = 0,
    ) -> None:
        """Adds a micro-batch: a backward pass per term over the graph of ``v``, which is freed.

        ``terms``: (cotangent shaped like ``v``, weights [K, B]). Weights carry the counts of the
        whole optimiser step, all ranks, so that micro-batches and ranks simply add up; 0 where a
        reward does not apply.

        ``outside``: a further cotangent, ∂(loss outside the balance)/∂v, for example of the KL,
        at one more pass. It goes to the outside row, which `write_grad` adds unweighted.

        ``slot``: which independent part of the step this micro-batch belongs to.
        """
        self._check_slot(slot)
        passes = plan(self.rows, self._outside, slot, v, terms, outside)
        self._faults.watch(passes)
        # Checkpointed blocks run their forward again in here, so layers are recorded here too.
        with self._recorder.layers(v.shape[0]):
            for number, step in enumerate(passes, 1):
                self._recorder.backward(v, step.cotangent, step.add, retain=number < len(passes))

    # -- the step -------------------------------------------------------------------------

    def reduce(self, group: dist.ProcessGroup | None = None) -> None:
        """Sums the accumulators over ranks, once per step; without a process group, nothing."""
        self._faults.check()
        if not (dist.is_available() and dist.is_initialized()):
            return
        self.rows.all_reduce(group)
        # Ranks must agree on whether there is an outside row before they reduce it.
        has = torch.tensor([int(self.outside is not None)], device=self.device)
        dist.all_reduce(has, op=dist.ReduceOp.MAX, group=group)
        if int(has):
            self._outside().all_reduce(group)

    def gram(self, slots: tuple[int, int] | None = None) -> Tensor:
        """The K×K inner products of the gradients, fp64, on the CPU.

        ``slots=(a, b)``: of slot a's gradients (rows) with slot b's (columns).
        """
        self._faults.check()
        if slots is not None:
            for slot in slots:
                self._check_slot(slot)
        gram = store.gram(self.rows, *(slots or (None, None)))
        bad = (~gram.diagonal().isfinite()).nonzero().flatten().tolist()
        if bad:
            raise MarbleError(
                f"The gradient of reward {', '.join(self.names[k] for k in bad)} is not finite; "
                "skip this step (jac.zero()) and look at the loss scale or learning rate."
            )
        return gram

    def dot(
        self, vector: Mapping[nn.Parameter, Tensor] | Tensor, *, slot: int | None = None
    ) -> Tensor:
        """``⟨g_k, vector⟩`` for every k, fp64: e.g. with Δθ, to measure the step as applied."""
        if slot is not None:
            self._check_slot(slot)
        flat = vector if isinstance(vector, Tensor) else self.flatten(vector)
        return store.dot(self.rows, slot, flat.to(self.device))

    def combine(self, c_K: Tensor) -> Tensor:
        """``Σ_k c_k g_k`` plus the outside row, flat [total]; `spans` says what lies where."""
        c = torch.as_tensor(c_K).to(self.device, self.dtype)
        if c.shape != (self.k,) or not bool(c.isfinite().all()):
            raise MarbleError(f"combine: give {self.k} finite coefficients, got {c.tolist()}.")
        out = torch.zeros(self.total, dtype=self.dtype, device=self.device)
        for slot in self.rows.data:
            out.addmv_(slot.T, c)
        if self.outside is not None:
            out.add_(self.outside.data[0, 0])
        return out

    def write_grad(self, c_K: Tensor, *, parts: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        """Adds ``Σ_k c_k g_k`` and the outside row to every parameter's ``.grad``.

        ``parts``: (positions in the flat vector, coefficients [K]) that hold there in place of c.
        """
        flat = self.combine(c_K)
        for at, own_K in parts:
            instead = (own_K - c_K).to(self.device, self.dtype)
            for slot in self.rows.data:
                flat[at] += slot[:, at].T @ instead
        for span in self.spans:
            add_to_grad(span.parameter, flat[span.start : span.stop])

    def zero(self) -> None:
        """Empties the accumulators for the next step."""
        self.rows.zero()
        if self.outside is not None:
            self.outside.zero()
        self._faults.clear()

    def flatten(self, values: Mapping[nn.Parameter, Tensor]) -> Tensor:
        """One value per parameter to one flat [total] vector, in the order of the rows."""
        parts = []
        for span in self.spans:
            value = values.get(span.parameter)
            if value is None or value.shape != span.shape:
                found = "nothing" if value is None else f"shape {tuple(value.shape)}"
                raise MarbleError(
                    f"Expected a tensor of shape {tuple(span.shape)} for {span.name}, got {found}."
                )
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            parts.append(full.detach().reshape(-1).to(self.device, self.dtype))
        return torch.cat(parts)

    # -- inside ---------------------------------------------------------------------------

    def _outside(self) -> Rows:
        if self.outside is None:
            self.outside = Rows(1, 1, self.total, self.dtype, self.device)
        return self.outside

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise MarbleError(f"There is no slot {slot}; there are {self.slots}.")
