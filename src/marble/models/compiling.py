"""Transformer blocks through torch.compile, with nothing running eager unseen.

The blocks' forward passes are compiled, one program per class of block, shared by all blocks of the
same make. Hooks, checkpointing and FSDP stay outside of it. A program is made for every way in
which blocks run: with or without a LoRA, with gradients or without, recorded (`marble.jacobian`) or
not, at one batch size or at any. `LIMIT` bounds them; torch's own bound is 8, beyond which it runs
eager without a word.

Each block is compiled as a whole. Where a family's blocks cannot be, they are compiled in parts;
where the compiler does not work, the blocks run as they are. Either is said once and counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marble.models import inductor
from marble.replay import SMALL

LIMIT = 64
"""Programs per class of block. SD3.5 Medium has three makes of block (two attentions, one, the
last one); each has four ways to run (merged or base, v_old, v_θ with gradients, recorded), at a
first batch size and at any other: 24."""

CACHE = "TORCHINDUCTOR_CACHE_DIR"

Say = Callable[[str], None]


def wanted(choice: bool | str, device: torch.device, weights: int, say: Say) -> bool:
    """What `model.compile` comes to on this device, for a denoiser of so many weights."""
    if choice != "auto":
        return bool(choice)
    if device.type != "cuda" or weights < SMALL:  # it has trained before compiling pays
        return False
    from torch.utils._triton import has_triton

    if not has_triton():
        say("the model is not compiled, as Triton does not work here: steps take twice as long")
        return False
    return True


class Compiled:
    """The compiled blocks of a model, and the count of what became of them."""

    def __init__(self, blocks: Iterable[nn.Module], say: Say, *, backend: str = "inductor") -> None:
        self.say, self._backend = say, backend
        self.mode = "whole"
        """`whole`: every block in one program; `parts`: with breaks; `off`: eager."""
        self.eager = 0
        """Calls of a block that ran as it is, uncompiled."""
        self.seconds = 0.0
        """Spent in calls that compiled something."""
        self._programs: dict[tuple[type, str], Callable[..., Any]] = {}
        self._started = self._full = False
        self._told = 0
        _configure()
        self._graphs_before, self._breaks_before = _graphs(), _breaks()
        for block in blocks:
            # On the instance, below hooks and checkpointing, which wrap the call of the module.
            block.forward = partial(self._call, block)

    @property
    def counts(self) -> dict[str, int]:
        """For the log: programs made, breaks in them, calls that ran eager."""
        return {
            "compile/graphs": _graphs() - self._graphs_before,
            "compile/breaks": _breaks() - self._breaks_before,
            "compile/eager": self.eager,
        }

    def tell(self) -> None:
        """Says what was compiled, if anything was since the last time."""
        counts = self.counts
        if counts["compile/graphs"] != self._told:
            self._told = counts["compile/graphs"]
            self.say(
                f"compiled {self._told} programs in {self.seconds:.0f} s so far; "
                f"{counts['compile/breaks']} breaks, {self.eager} calls of a block ran eager"
            )

    def _call(self, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Inside a dispatch mode (a FLOP counter, say) torch compiles nothing, and would leave the
        # block uncompiled ever after.
        if self.mode == "off" or torch._C._len_torch_dispatch_stack():
            self.eager += 1
            return type(block).forward(block, *args, **kwargs)
        if not self._started:
            self._started = True
            self.say(
                "compiling the model's blocks as they are first used, some minutes in all; kept "
                f"for the next run in {os.environ[CACHE]}"
            )
        before, began = _graphs(), time.perf_counter()
        try:
            return self._program(type(block))(block, *args, **kwargs)
        except Exception as error:
            if not self._excused(error):
                raise
            full = _is_full(error)
        finally:
            if _graphs() != before:
                self.seconds += time.perf_counter() - began
        if full:  # what is compiled already stays so
            self.eager += 1
            return type(block).forward(block, *args, **kwargs)
        return self._call(block, *args, **kwargs)

    def _program(self, kind: type[nn.Module]) -> Callable[..., Any]:
        key = (kind, self.mode)
        if key not in self._programs:
            self._programs[key] = torch.compile(
                kind.forward, backend=self._backend, fullgraph=self.mode == "whole"
            )
        return self._programs[key]

    def _excused(self, error: Exception) -> bool:
        """Whether the compiler failed, rather than the block; says so, and what follows from it."""
        from torch._dynamo.exc import TorchDynamoException, Unsupported

        full = _is_full(error)
        if not full and not isinstance(error, TorchDynamoException):
            return False
        cause = cause_of(error)
        if full and not self._full:
            self._full = True
            self.say(
                f"there are more kinds of passes than the {LIMIT} that are compiled: further ones "
                "run eager (compile/eager in metrics.jsonl counts them)"
            )
        elif isinstance(error, Unsupported) and self.mode == "whole":
            self.mode = "parts"
            self.say(f"blocks are compiled in parts, not as a whole ({cause})")
        elif not full:
            self.mode = "off"
            self.say(
                f"the model goes on without torch.compile, about half as fast ({cause}); "
                "model.compile=false does so from the start"
            )
        return True


def cause_of(error: Exception) -> str:
    """Why compiling failed, in one line."""
    inner = getattr(error, "inner_exception", error)
    return next((line for line in str(inner).strip().splitlines() if line), repr(inner))


def _is_full(error: Exception) -> bool:
    """Whether `LIMIT` is reached."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    return isinstance(error, FailOnRecompileLimitHit)


def _configure() -> None:
    """torch's settings for it, for the whole process."""
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch

    dynamo.recompile_limit = max(dynamo.recompile_limit, LIMIT)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 8 * LIMIT)
    # A failure to compile the backward pass has to come in the forward pass, where it is excused.
    if hasattr(functorch, "force_non_lazy_backward_lowering"):
        functorch.force_non_lazy_backward_lowering = True
    # A recorded pass has two backward passes: the first must leave saved tensors as they are.
    functorch.donated_buffer = False
    inductor.configure()
    if os.environ.get(CACHE, _torch_s_choice()) == _torch_s_choice():
        os.environ[CACHE] = str(cache_folder())


def cache_folder() -> Path:
    """Where compiled code is kept, unless the environment names a folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "marble" / "compiled"


def _torch_s_choice() -> str:
    """A temporary folder, which torch writes into the environment as if a user had."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return default_cache_dir()


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _breaks() -> int:
    from torch._dynamo.utils import counters

    return int(sum(counters["graph_break"].values()))
