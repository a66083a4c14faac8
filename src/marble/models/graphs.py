"""Forward passes of small models as CUDA graphs: recorded once, then replayed by a single call.

A small model's pass is hundreds of kernels that each take less time than launching them does.
While pictures are drawn, all passes of one batch size are the same launches on other numbers: the
second one is recorded, and all later ones are replayed. Recordings hold the addresses of weights
and must not outlive them: they belong to one `Adapter.drawing`, and are dropped at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from marble.models.conditioning import Conditioning

Pass = Callable[[Tensor, Tensor, Conditioning], Tensor]
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""A computation → (what runs it again, where its result then is)."""


class Graphs:
    """Runs `velocity` for any number of batches; what cannot be recorded runs as it is."""

    def __init__(
        self, velocity: Pass, say: Callable[[str], None], *, record: Record | None = None
    ) -> None:
        self._velocity, self._say = velocity, say
        self._record: Record | None = record or record_cuda
        self._recorded: dict[Any, _Recording | None] = {}
        self._seen: set[Any] = set()
        self.replayed = 0

    def __call__(self, x: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        key = (x.shape, x.dtype, *((n, t.shape, t.dtype) for n, t in cond.tensors.items()))
        if cond.ragged or self._record is None or key not in self._seen:
            # Lengths of text are numbers on the host; and the first pass of a size warms up.
            self._seen.add(key)
            return self._velocity(x, sigma_B, cond)
        if key not in self._recorded:
            self._recorded[key] = self._make(x, sigma_B, cond)
        recording = self._recorded[key]
        if recording is None:
            return self._velocity(x, sigma_B, cond)
        self.replayed += 1
        return recording(x, sigma_B, cond)

    def _make(self, x: Tensor, sigma_B: Tensor, cond: Conditioning) -> _Recording | None:
        assert self._record is not None
        try:
            return _Recording(self._velocity, self._record, x, sigma_B, cond)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            self._say(f"sampling goes on without CUDA graphs ({cause})")
            self._record = None
            return None


class _Recording:
    def __init__(
        self, velocity: Pass, record: Record, x: Tensor, sigma_B: Tensor, cond: Conditioning
    ) -> None:
        self._x, self._sigma_B = x.clone(), sigma_B.clone()
        tensors = {name: tensor.clone() for name, tensor in cond.tensors.items()}
        self._cond = Conditioning(tensors, cond.ragged, cond.counts)
        self._holds: Conditioning | None = cond
        self._replay, self._result = record(lambda: velocity(self._x, self._sigma_B, self._cond))

    def __call__(self, x: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        self._x.copy_(x)
        self._sigma_B.copy_(sigma_B)
        if cond is not self._holds:  # the same object in all steps of a batch
            for name, tensor in cond.tensors.items():
                self._cond.tensors[name].copy_(tensor)
            self._holds = cond
        self._replay()
        return self._result.clone()


def record_cuda(compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Records on a stream of its own, while other threads may go on with theirs.

    `torch.cuda.graph` would collect garbage and empty the allocator's cache before: a tenth of a
    second and more, per rollout.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = compute()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, result
