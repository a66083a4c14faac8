"""A recipe's model with random weights, of true size or tiny, as `marble bench loop` makes it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import diffusers
import torch

from marble.bench.random_model import filled, random_pipeline, random_text
from marble.models.family import Family
from marble.models.pipeline import PipelineAdapter
from marble.models.quiet import quiet
from marble.models.registry import families
from marble.recipe import Recipe

__all__ = ["build_adapter", "random_text"]


def build_adapter(recipe: Recipe, device: torch.device, *, tiny: bool) -> PipelineAdapter:
    """The recipe's model without text encoders; `tiny`: of the family's tiny sizes."""
    path = recipe.model.path
    family = next(f for f in families() if path in f.published)
    pipeline = random_pipeline(path, family, torch.bfloat16, device) if not tiny else _tiny(family)
    return family.adapter(
        pipeline,
        options=family.Options.model_validate(recipe.model.options),
        device=device,
        dtype="bf16",
        resolution=recipe.model.resolution,
        gradient_checkpointing=recipe.model.gradient_checkpointing,
    )


def _tiny(family: type[Family]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        with quiet():
            family.tiny(folder)
        names = ("transformer/config", "vae/config", "scheduler/scheduler_config")
        read = [json.loads(Path(folder, f"{name}.json").read_text()) for name in names]
    transformer, vae, scheduler = ({k: v for k, v in c.items() if k[0] != "_"} for c in read)
    kind = getattr(diffusers, family.pipeline)
    absent = dict.fromkeys(
        name
        for name in kind._get_signature_types()
        if name.startswith(("text_encoder", "tokenizer", "image_encoder", "feature_extractor"))
    )
    cpu = torch.device("cpu")
    with quiet():
        return kind(
            transformer=filled(
                getattr(diffusers, family.transformer), transformer, torch.bfloat16, cpu
            ),
            vae=getattr(diffusers, family.rest.vae)(**vae),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**scheduler),
            **absent,
        )
