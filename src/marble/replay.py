"""Computations of small models as CUDA graphs: recorded once, then replayed by a single call.

A small model's pass is hundreds of kernels that each take less time than launching them does. With
the same sizes a pass is the same launches on other numbers: the second one of a size is recorded,
and all later ones are replayed. A recording reads weights where they lay when it was made: they may
change in place, and must not move.

Beside a large model nothing is gained by it: small models are recorded once the model that draws
has asked for it (`allow`), as `model.compile` has a small one do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

SMALL = 100_000_000
"""Weights of a model whose kernels take longer to launch than to run."""
MOST = 8
"""Sizes that are recorded; each keeps memory of its own."""

Result = Tensor | tuple[Tensor, ...]
Record = Callable[[Callable[[], Any]], tuple[Callable[[], Any], Any]]
"""A computation → (what runs it again, where its result then is)."""
Say = Callable[[str], None]


_allowed = False


def allow() -> None:
    """Small models of this process are recorded from here on."""
    global _allowed
    _allowed = True


def is_small(model: nn.Module) -> bool:
    return sum(p.numel() for p in model.parameters()) < SMALL


class Recordings:
    """What was recorded, by size; the first computation of a size warms it up instead."""

    def __init__(self, what: str, say: Say | None = None, record: Record | None = None) -> None:
        self._what, self._say = what, say or _to_stderr
        self._record = record
        self._made: dict[Hashable, Any] = {}
        self._seen: set[Hashable] = set()
        self.possible = True

    def find(self, key: Hashable, make: Callable[[Record], Any]) -> Any:
        """The recording of that size, made now if it is the second time; None: compute it."""
        if key in self._made:
            return self._made[key]
        if self._record is None and not _allowed:
            return None
        if not self.possible or key not in self._seen or len(self._made) >= MOST:
            self._seen.add(key)
            return None
        try:
            self._made[key] = make(self._record or record_cuda)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            self._say(f"{self._what} goes on without CUDA graphs ({cause})")
            self.possible = False
            return None
        return self._made[key]


class Replayed:
    """A function of tensors, without gradients; what cannot be recorded is computed as it is."""

    def __init__(
        self,
        compute: Callable[..., Any],
        what: str,
        say: Say | None = None,
        *,
        record: Record | None = None,
    ) -> None:
        self._compute = compute
        self._recordings = Recordings(what, say, record)
        self.replayed = 0

    def __call__(self, *inputs: Tensor) -> Any:
        key = tuple((t.shape, t.dtype, t.stride()) for t in inputs)
        recording = self._recordings.find(key, lambda record: self._make(record, inputs))
        if recording is None:
            return self._compute(*inputs)
        places, replay, result = recording
        for place, tensor in zip(places, inputs):
            place.copy_(tensor, non_blocking=True)
        replay()
        self.replayed += 1
        return result.clone() if isinstance(result, Tensor) else tuple(t.clone() for t in result)

    def _make(self, record: Record, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        places = [tensor.clone() for tensor in inputs]
        # Once before, in this thread and on that stream: libraries make their handles and plans for
        # each thread, which cannot be recorded, and rewards are called in threads of their own.
        with aside() if places[0].is_cuda else nullcontext():
            self._compute(*places)
        return (places, *record(lambda: self._compute(*places)))


_streams: dict[int, torch.cuda.Stream] = {}


@contextmanager
def aside() -> Iterator[None]:
    """Computes on the stream of the recordings, after what came before and before what follows."""
    stream = _streams.setdefault(torch.cuda.current_device(), torch.cuda.Stream())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def record_cuda(compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Records on a stream of its own, while other threads may go on with theirs.

    `torch.cuda.graph` would collect garbage and empty the allocator's cache before: a tenth of a
    second and more. A backward pass runs on the stream of its forward pass: all recordings share
    one.
    """
    graph = torch.cuda.CUDAGraph()
    with aside():
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = compute()
        finally:
            graph.capture_end()
    return graph.replay, result


def _to_stderr(line: str) -> None:
    print(f"marble: {line}", file=sys.stderr)
