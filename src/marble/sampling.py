"""Pictures of given prompts from a recipe's model, with a LoRA or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image

from marble.data import text_problem
from marble.errors import MarbleError
from marble.models.base import Adapter
from marble.models.build import build_adapter, check_prompts
from marble.models.lora import read_file
from marble.models.sliders import sliders_of
from marble.recipe import Recipe
from marble.training.memory import fitted


def load_policy(
    recipe: Recipe,
    lora: Path | None,
    device: str | None,
    prefer: Mapping[str, float] | None = None,
) -> Adapter:
    """The recipe's model on `device`, wearing the LoRA if there is one, at the slider weights
    `prefer`.

    In full precision where the recipe leaves it open: these pictures are those of stock diffusers.
    """
    if recipe.train.precision == "auto":
        train = recipe.train.model_copy(update={"precision": None})
        recipe = recipe.model_copy(update={"train": train})
    if lora is not None:
        read_file(lora)  # a file that is no LoRA is refused before the model loads
    weights = slider_weights(lora, prefer)
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    adapter = build_adapter(recipe, chosen)
    if lora is not None:
        wear(adapter, lora, weights)
    return adapter


def slider_weights(lora: Path | None, prefer: Mapping[str, float] | None) -> list[float] | None:
    """One weight per slider; None where nothing is preferred."""
    if prefer is None:
        return None
    if lora is None:
        raise MarbleError("--prefer: the base has no sliders; name a run of method steer")
    return sliders_of(lora).weights(prefer)


def wear(adapter: Adapter, lora: Path, weights: Sequence[float] | None) -> None:
    """Loads the LoRA into the model, at these slider weights."""
    adapter.load_lora(lora)
    if weights is not None:
        state = sliders_of(lora).at(adapter.lora_state(), weights)
        adapter.load_lora_state("default", state)


def draw_prompts(
    recipe: Recipe,
    lora: Path | None,
    prompts: list[str],
    out: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    scale: int = 1,
    device: str | None = None,
    prefer: Mapping[str, float] | None = None,
) -> list[Path]:
    """Draws `prompts[i]` with seed `seed + i` into `out`, one PNG each."""
    for prompt in prompts:
        problem = text_problem(prompt)
        if problem:
            raise MarbleError(f"prompt {prompt[:40]!r}…: {problem}")
    check_prompts(recipe, prompts)
    adapter = load_policy(recipe, lora, device, prefer)
    recipe = fitted(recipe, adapter.device, 1)
    cond = adapter.encode(prompts)
    settings = recipe.rollout
    latents = adapter.sample(
        cond,
        [seed + i for i in range(len(prompts))],
        steps=steps or recipe.eval.steps or settings.steps,
        sampler=recipe.eval.sampler or settings.sampler,
        guidance=recipe.eval.guidance or settings.guidance,
        batch_size=settings.batch_size,
    )
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for i, pixels in enumerate(adapter.decode(latents)):
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        if scale > 1:
            image = image.resize(
                (image.width * scale, image.height * scale), Image.Resampling.NEAREST
            )
        files.append(out / f"{i:03d}.png")
        image.save(files[-1])
    return files
