"""When memory runs out: which settings lower it, cheapest first."""

from __future__ import annotations

import torch

from marble.errors import MarbleError
from marble.memory import sized
from marble.objectives import objective_class
from marble.recipe import Recipe

# The allocator of the CPU raises no class of its own.
_CPU_MESSAGE = "can't allocate memory"


def device_gb(device: torch.device) -> float | None:
    """Memory that this process may have of a GPU; None for a CPU."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory / 1e9
    index = torch.cuda.current_device() if device.index is None else device.index
    return float(total * torch.cuda.get_per_process_memory_fraction(index))


def fitted(recipe: Recipe, device: torch.device, processes: int) -> Recipe:
    """The recipe with the batches of `memory.sized` for this device, where it has none."""
    try:
        return sized(recipe, device_gb(device), processes)
    except MarbleError:  # a model whose size nobody knows; whether it is there is said elsewhere
        return sized(recipe, None, processes)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and _CPU_MESSAGE in str(error)
    )


def out_of_memory(recipe: Recipe, processes: int) -> MarbleError:
    """The error to raise in its place."""
    return MarbleError(
        f"out of memory; to lower it, cheapest first: {'; '.join(savings(recipe, processes))}"
    )


def savings(recipe: Recipe, processes: int = 1) -> list[str]:
    """Settings that this recipe can still lower, in order of what they cost."""
    model, train, rollout = recipe.model, recipe.train, recipe.rollout
    found: list[str] = []
    if not model.gradient_checkpointing:
        found.append("model.gradient_checkpointing=true (a third slower, same result)")
    least = objective_class(recipe.objective.name).together
    if train.batch_size is None:
        found.append(f"train.batch_size={least} (same result)")
    elif train.batch_size > least:
        found.append(f"train.batch_size below {train.batch_size} (same result)")
    if rollout.batch_size is None:
        found.append("rollout.batch_size=1 (same result)")
    elif rollout.batch_size > 1:
        found.append(f"rollout.batch_size below {rollout.batch_size} (same result)")
    if rollout.fp8:
        found.append("rollout.fp8=false (no second copy of the weights while drawing)")
    if not model.offload_encoders:
        found.append("model.offload_encoders=true (new prompts take longer)")
    if model.dtype == "fp32":
        found.append("model.dtype=bf16 (half the frozen weights)")
    if recipe.balance.heldout_half:
        found.append("balance.heldout_half=false (no out-of-sample conflict)")
    if model.lora.rank > 1:
        found.append(f"model.lora.rank below {model.lora.rank} (another model)")
    if processes > 1 and not train.fsdp:
        found.append("train.fsdp=true (the frozen weights are shared out)")
    return found
