"""The global random generators of a process: torch, CUDA, numpy and Python's own.

marble itself draws everything from seeds of its own, so that nothing depends on the number of
processes. A user's reward may well draw from the global generators; they are part of the state.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def seed(run_seed: int, rank: int, step: int = 0) -> None:
    """Starts all generators of a process, at `step`; every process gets its own stream."""
    sequence = np.random.SeedSequence([run_seed, rank, step, 0x5EED])
    torch_seed, numpy_seed, python_seed = sequence.generate_state(3, np.uint32)
    torch.manual_seed(int(torch_seed))
    np.random.seed(int(numpy_seed))
    random.seed(int(python_seed))


def capture() -> dict[str, Tensor]:
    """The generators' states as tensors."""
    _, keys, position, has_gauss, cached = np.random.get_state()
    version, internal, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        "numpy_position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "python": torch.tensor([version, *internal], dtype=torch.int64),
        "python_gauss": torch.tensor([math.nan if gauss is None else gauss], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: Mapping[str, Tensor]) -> None:
    """Undoes what was drawn since `capture`."""
    torch.set_rng_state(state["torch"])
    position, has_gauss = state["numpy_position"].tolist()
    keys = state["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, position, has_gauss, float(state["numpy_gauss"])))
    version, *internal = state["python"].tolist()
    gauss = float(state["python_gauss"])
    random.setstate((version, tuple(internal), None if math.isnan(gauss) else gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
