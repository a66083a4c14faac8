"""Large models of true size with random weights, made on the device: no download, no disk."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from marble.models.conditioning import MASK, Conditioning
from marble.models.family import Family
from marble.models.pipeline import PipelineAdapter
from marble.models.quiet import quiet
from marble.models.registry import families
from marble.recipe import Recipe

KL_VAE = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 16,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
DYNAMIC = {"use_dynamic_shifting": True}
LENGTHS = (48, 120, 77, 31)
"""Text tokens of prompts, where these are ragged: in turn."""


@dataclass(frozen=True)
class Model:
    recipe: str
    vae: str
    vae_config: dict[str, Any]
    scheduler: dict[str, Any]
    default: bool = True
    """Whether it is measured if no model is named."""


MODELS = {
    "flux2-klein": Model("flux2-klein-5rewards", "AutoencoderKLFlux2", {}, DYNAMIC),
    "zimage": Model("zimage-5rewards", "AutoencoderKL", KL_VAE, {"shift": 3.0}),
    "qwen-image": Model("qwen-image-5rewards", "AutoencoderKLQwenImage", {}, DYNAMIC),
    "flux1-dev": Model("flux1-dev-5rewards", "AutoencoderKL", KL_VAE, DYNAMIC, default=False),
    "sd35m": Model("sd35m-5rewards", "AutoencoderKL", KL_VAE, {"shift": 3.0}, default=False),
    "sd35l": Model("sd35l-5rewards", "AutoencoderKL", KL_VAE, {"shift": 3.0}, default=False),
}


def build_adapter(recipe: Recipe, device: torch.device, *, tiny: bool) -> PipelineAdapter:
    """The recipe's model without text encoders; `tiny`: of the family's tiny sizes."""
    path = recipe.model.path
    family = next(f for f in families() if path in f.published)
    model = next(m for m in MODELS.values() if m.recipe == recipe.name)
    config = dict(family.published[path].transformer)
    vae_config, scheduler = model.vae_config, model.scheduler
    if tiny:
        config, vae_config, scheduler = _tiny(family)
    torch.manual_seed(0)
    pipeline = getattr(diffusers, family.pipeline)
    absent = dict.fromkeys(
        name
        for name in pipeline._get_signature_types()
        if name.startswith(("text_encoder", "tokenizer", "image_encoder", "feature_extractor"))
    )
    parts = {
        "transformer": filled(getattr(diffusers, family.transformer), config, device),
        "vae": getattr(diffusers, model.vae)(**vae_config),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(**scheduler),
    }
    return family.adapter(
        pipeline(**parts, **absent),
        options=family.Options.model_validate(recipe.model.options),
        device=device,
        dtype="bf16",
        resolution=recipe.model.resolution,
        gradient_checkpointing=recipe.model.gradient_checkpointing,
    )


def _tiny(family: type[Family]) -> tuple[dict[str, Any], ...]:
    with tempfile.TemporaryDirectory() as folder:
        with quiet():
            family.tiny(folder)
        names = ("transformer/config", "vae/config", "scheduler/scheduler_config")
        read = [json.loads(Path(folder, f"{name}.json").read_text()) for name in names]
    return tuple({k: v for k, v in config.items() if k[0] != "_"} for config in read)


def filled(kind: type[Any], config: dict[str, Any], device: torch.device) -> Any:
    """A bf16 model that never was on the CPU, with weights as small as trained ones."""
    with torch.device("meta"), quiet():
        model = kind(**config)
        model.to(torch.bfloat16).to_empty(device=device)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dim() >= 2:
                tensor.normal_(std=0.02)
            else:
                tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    for parent in model.modules():  # tables of positions that are neither parameter nor buffer
        for name, child in parent.named_children():
            if any(isinstance(v, Tensor) and v.is_meta for v in vars(child).values()):
                setattr(parent, name, _anew(child))
    return model


def _anew(module: nn.Module) -> nn.Module:
    arguments = {k: getattr(module, k) for k in ("theta", "axes_dim", "scale_rope")}
    return type(module)(**arguments)


def random_text(adapter: PipelineAdapter, count: int) -> Conditioning:
    """Text embeddings of the true shape, as the adapter's own `_encode` would name them."""
    config = adapter.transformer.config
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(adapter.dtype)

    width = config.get("joint_attention_dim") or config.get("cap_feat_dim")
    if adapter.pipeline_class in ("ZImagePipeline", "QwenImagePipeline"):
        lengths = [LENGTHS[i % len(LENGTHS)] for i in range(count)]
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        embeds = normal(count, max(lengths), width) * mask[..., None]
        tensors = {"prompt_embeds": embeds, MASK: mask}
        return Conditioning(tensors, ragged=("prompt_embeds", MASK)).trimmed()
    extra = 77 if adapter.pipeline_class == "StableDiffusion3Pipeline" else 0
    tensors = {"prompt_embeds": normal(count, extra + adapter.max_tokens, width)}
    if "pooled_projection_dim" in config:
        tensors["pooled_prompt_embeds"] = normal(count, config["pooled_projection_dim"])
    return Conditioning(tensors)
