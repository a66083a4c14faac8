"""Models: one adapter a diffusers family, behind one interface."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marble.errors import MarbleError
from marble.models.folder import check_weights, find_model, pipeline_index

if TYPE_CHECKING:
    from marble.models.base import Adapter

# Pipeline class in model_index.json → module and class of its adapter.
FAMILIES = {"StableDiffusion3Pipeline": ("marble.models.sd3", "SD3Adapter")}

__all__ = ["FAMILIES", "check", "check_prompts", "load"]


def check(path: str, revision: str | None = None) -> tuple[Path, str]:
    """Whether the model could be loaded, without loading it; returns its folder and family."""
    folder = find_model(path, revision)
    index = pipeline_index(folder)
    family = index["_class_name"]
    if family not in FAMILIES:
        raise MarbleError(
            f"{folder}: holds a {family}, which is not supported; supported: {', '.join(FAMILIES)}"
        )
    check_weights(folder, index)
    return folder, family


def check_prompts(
    path: str,
    prompts: Iterable[str],
    *,
    revision: str | None = None,
    max_sequence_length: int | None = None,
) -> None:
    """Raises for the first prompt that is longer than the model's text encoders take."""
    folder, family = check(path, revision)
    _adapter_class(family).check_folder_prompts(folder, prompts, max_sequence_length)


def load(
    path: str,
    *,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "fp32",
    precision: str | None = None,
    resolution: int | None = None,
    max_sequence_length: int | None = None,
    truncate_prompts: bool = False,
    offload_encoders: bool = False,
    gradient_checkpointing: bool = False,
    compile: bool = False,
    denoiser_on_cpu: bool = False,
) -> Adapter:
    """The adapter of `studio`, a diffusers folder or a hub id.

    `dtype` is the format of the frozen weights, `precision` that of the computation (default: the
    same); both `fp32`, `bf16` or `fp16`. LoRA weights are always fp32. `denoiser_on_cpu` leaves the
    denoiser in main memory, for whoever shards it onto the device.
    """
    folder, family = check(path, revision)
    options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "precision": precision,
        "resolution": resolution,
        "max_sequence_length": max_sequence_length,
        "truncate_prompts": truncate_prompts,
        "offload_encoders": offload_encoders,
        "gradient_checkpointing": gradient_checkpointing,
        "compile": compile,
        "denoiser_on_cpu": denoiser_on_cpu,
    }
    return _adapter_class(family).from_folder(folder, **options)


def _adapter_class(family: str) -> type[Adapter]:
    module, name = FAMILIES[family]
    from marble.models.quiet import quiet

    with quiet():  # transformers announces its PIL fallback where torchvision is absent
        kind: type[Adapter] = getattr(import_module(module), name)
    return kind
