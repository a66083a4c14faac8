"""Sharing the frozen base out among processes (FSDP2), for models that do not fit on one device.

The LoRA weights stay whole on every process: they are small, and the balance reduces their
gradients itself, once per step. Only the frozen weights are sharded, block by block; a block's
weights are gathered when it computes and dropped afterwards.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from marble.errors import MarbleError
from marble.models import lora
from marble.models.base import Adapter
from marble.models.pipeline import blocks
from marble.recipe import Recipe


def check(recipe: Recipe, size: int) -> None:
    """Gathering a block takes all processes, so they must run equally many passes in a row."""
    if not recipe.train.fsdp or size == 1:
        return
    samples = recipe.data.prompts_per_epoch * recipe.data.images_per_prompt
    if samples % size:
        raise MarbleError(
            f"train.fsdp: an epoch's {samples} samples must divide by {size} processes; change "
            "data.prompts_per_epoch or data.images_per_prompt"
        )
    if recipe.train.steps_per_epoch > 1:
        raise MarbleError("train.fsdp needs train.steps_per_epoch=1")
    if recipe.train.extremes < 1:
        raise MarbleError("train.fsdp needs train.extremes=1: all processes train equally often")


def shard_base(adapter: Adapter, size: int) -> None:
    """Shards the denoiser's frozen weights over `size` processes, onto the adapter's device."""
    model, device = adapter.transformer, adapter.device
    whole = {
        parameter
        for name in lora.names(model)
        for parameter in adapter.lora_parameters(name).values()
    }
    for parameter in whole:
        parameter.data = parameter.data.to(device)
    mesh = init_device_mesh(device.type, (size,))
    for module in (*blocks(model), model):
        fully_shard(module, mesh=mesh, ignored_params=whole)


def held_here(model: nn.Module) -> int:
    """Frozen numbers that this process keeps: its shards."""
    return sum(_local(p).numel() for p in model.parameters() if not p.requires_grad)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
