"""From a recipe to its model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import marble.models
from marble.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from marble.models.pipeline import PipelineAdapter


def check_model(recipe: Recipe) -> None:
    """Whether the recipe's model could be loaded, without loading it."""
    model = recipe.model
    marble.models.check(model.path, model.revision, family=model.family, options=model.options)


def check_prompts(recipe: Recipe, prompts: Iterable[str]) -> None:
    """Raises for the first prompt that is too long, unless the recipe has long ones cut."""
    model = recipe.model
    if not model.truncate_prompts:
        marble.models.check_prompts(
            model.path,
            prompts,
            revision=model.revision,
            family=model.family,
            options=model.options,
            max_sequence_length=model.max_sequence_length,
        )


def build_adapter(
    recipe: Recipe,
    device: torch.device,
    *,
    denoiser_on_cpu: bool = False,
    training: bool = False,
) -> PipelineAdapter:
    """The recipe's model on `device`, without a LoRA; `training`: for so many passes that they are
    worth compiling for."""
    model = recipe.model
    choice = model.compile
    if choice == "auto" and not training:
        choice = False
    adapter = marble.models.load(
        model.path,
        revision=model.revision,
        family=model.family,
        options=model.options,
        device=str(device),
        dtype=model.dtype,
        precision=recipe.train.precision,
        resolution=model.resolution,
        max_sequence_length=model.max_sequence_length,
        truncate_prompts=model.truncate_prompts,
        offload_encoders=model.offload_encoders,
        gradient_checkpointing=model.gradient_checkpointing,
        compile=choice,
        denoiser_on_cpu=denoiser_on_cpu,
    )
    adapter.replays = bool(model.compile)
    return adapter


def stock_call(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """diffusers' own pipeline class, and the arguments that draw as the recipe evaluates."""
    model, settings, rollout = recipe.model, recipe.eval, recipe.rollout
    _, family = marble.models.check(
        model.path, model.revision, family=model.family, options=model.options
    )
    options = family.Options.model_validate(model.options)
    guidance = settings.guidance or rollout.guidance
    call: dict[str, Any] = {"num_inference_steps": settings.steps or rollout.steps}
    call |= family.arguments(guidance=guidance, options=options)
    if model.resolution is not None:
        call |= {"height": model.resolution, "width": model.resolution}
    if model.max_sequence_length is not None:
        call["max_sequence_length"] = model.max_sequence_length
    return family.pipeline, call
