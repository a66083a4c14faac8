"""Models: one file a diffusers family, behind one interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from marble.models.family import Family, Section
    from marble.models.pipeline import PipelineAdapter

__all__ = ["check", "check_prompts", "load"]


def check(
    path: str,
    revision: str | None = None,
    *,
    family: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Path, type[Family]]:
    """Whether the model could be loaded, without loading it; returns its folder and family."""
    from marble.models.fetch import find_model
    from marble.models.folder import check_weights, pipeline_index
    from marble.models.registry import family_of

    folder = find_model(path, revision)
    found = family_of(folder, family)
    found.check(folder)
    check_weights(folder, pipeline_index(folder))
    _options(found, options)
    return folder, found


def check_prompts(
    path: str,
    prompts: Iterable[str],
    *,
    revision: str | None = None,
    family: str | None = None,
    options: Mapping[str, Any] | None = None,
    max_sequence_length: int | None = None,
) -> None:
    """Raises for the first prompt that is longer than the model's text encoders take."""
    folder, found = check(path, revision, family=family, options=options)
    own = _options(found, options)
    found.adapter.check_folder_prompts(folder, prompts, max_sequence_length, own)


def load(
    path: str,
    *,
    revision: str | None = None,
    family: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: str = "fp32",
    precision: str | None = None,
    resolution: int | None = None,
    max_sequence_length: int | None = None,
    truncate_prompts: bool = False,
    offload_encoders: bool = False,
    gradient_checkpointing: bool = False,
    compile: bool | Literal["auto"] = False,
    denoiser_on_cpu: bool = False,
) -> PipelineAdapter:
    """The adapter of `studio`, a diffusers folder or a hub id.

    `family` is `module:Class` for one that is not built in, `options` are the family's own.
    `dtype` is the format of the frozen weights, `precision` that of the computation (default: the
    same); both `fp32`, `bf16` or `fp16`. LoRA weights are always fp32. `denoiser_on_cpu` leaves the
    denoiser in main memory, for whoever shards it onto the device.
    """
    folder, found = check(path, revision, family=family, options=options)
    return found.adapter.from_folder(
        folder,
        options=_options(found, options),
        device=device,
        dtype=dtype,
        precision=precision,
        resolution=resolution,
        max_sequence_length=max_sequence_length,
        truncate_prompts=truncate_prompts,
        offload_encoders=offload_encoders,
        gradient_checkpointing=gradient_checkpointing,
        compile=compile,
        denoiser_on_cpu=denoiser_on_cpu,
    )


def _options(family: type[Family], given: Mapping[str, Any] | None) -> Section:
    """The family's own recipe fields, validated."""
    from pydantic import ValidationError

    from marble.errors import MarbleError

    try:
        return family.Options.model_validate(dict(given or {}))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(["model.options", *map(str, problem["loc"])])
        if problem["type"] == "extra_forbidden":
            known = ", ".join(family.Options.model_fields) or "none"
            raise MarbleError(f"{key}: unknown key; {family.pipeline} has: {known}") from None
        raise MarbleError(f"{key}: {problem['msg']}, got {problem['input']!r}") from None
