"""A recipe's model of true size with random weights, made on the device: no download, no disk."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from marble.errors import MarbleError
from marble.models.conditioning import MASK, Conditioning
from marble.models.family import Family
from marble.models.folder import NotHere, find_local, pipeline_index
from marble.models.pipeline import PipelineAdapter
from marble.models.precision import DTYPES
from marble.models.quiet import quiet
from marble.models.registry import families, family_of
from marble.recipe import Recipe

LENGTHS = (48, 120, 77, 31)
"""Text tokens of prompts, where these are ragged: in turn."""


def open_pipeline(recipe: Recipe, device: torch.device) -> tuple[Any, type[Family]]:
    """The recipe's pipeline: its files if they are here, else of published size and random."""
    import diffusers

    model = recipe.model
    try:
        folder = find_local(model.path, model.revision)
    except NotHere:
        family = next((f for f in families() if model.path in f.published), None)
        if family is None or family.rest is None:
            raise MarbleError(
                f"model.path: {model.path} is not on this machine, and its size is not known; "
                "download it, or take a recipe of one of: "
                + ", ".join(i for f in families() if f.rest for i in f.published)
            ) from None
        return random_pipeline(model.path, family, DTYPES[model.dtype], device), family
    family = family_of(folder, model.family)
    index = pipeline_index(folder)
    absent = {p: None for p in family.adapter.optional_parts if index.get(p, [None])[0] is None}
    with quiet():
        pipeline = getattr(diffusers, family.pipeline).from_pretrained(
            folder, torch_dtype=DTYPES[model.dtype], local_files_only=True, **absent
        )
    return pipeline, family


def random_pipeline(
    hub_id: str, family: type[Family], dtype: torch.dtype, device: torch.device
) -> Any:
    """Transformer, decoder and scheduler; no text encoders."""
    import diffusers

    rest = family.rest
    assert rest is not None  # `open_pipeline` has asked
    torch.manual_seed(0)
    kind = getattr(diffusers, family.pipeline)
    absent = dict.fromkeys(
        name
        for name in kind._get_signature_types()
        if name.startswith(("text_encoder", "tokenizer", "image_encoder", "feature_extractor"))
    )
    config = dict(family.published[hub_id].transformer)
    with quiet():
        return kind(
            transformer=filled(getattr(diffusers, family.transformer), config, dtype, device),
            vae=getattr(diffusers, rest.vae)(**rest.vae_config),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**rest.scheduler),
            **absent,
        )


def filled(kind: type[Any], config: dict[str, Any], dtype: torch.dtype, device: Any) -> Any:
    """A model that never was in main memory, with weights as small as trained ones."""
    with torch.device("meta"), quiet():
        model = kind(**config)
        model.to(dtype).to_empty(device=device)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dim() >= 2:
                tensor.normal_(std=0.02)
            else:
                tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    for parent in model.modules():  # tables of positions that are neither parameter nor buffer
        for name, child in parent.named_children():
            if any(isinstance(v, Tensor) and v.is_meta for v in vars(child).values()):
                arguments = {k: getattr(child, k) for k in ("theta", "axes_dim", "scale_rope")}
                setattr(parent, name, type(child)(**arguments))
    return model


def copy_of(pipeline: Any, *, own: bool = False) -> Any:
    """A pipeline with modules of its own and the same memory for the transformer's weights, or
    weights of its own too."""
    memo: dict[int, Any] = {}
    weights = () if own else (*pipeline.transformer.parameters(), *pipeline.transformer.buffers())
    for tensor in weights:
        parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(tensor.data, requires_grad=False) if parameter else tensor
    parts = {
        name: copy.deepcopy(part, memo) if name in ("transformer", "vae") else part
        for name, part in pipeline.components.items()
    }
    with quiet():
        return type(pipeline)(**parts)


def random_text(adapter: PipelineAdapter, count: int) -> Conditioning:
    """Text embeddings of the true shape, as the adapter's own `_encode` would name them."""
    config = adapter.transformer.config
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(adapter.dtype)

    width = config.get("joint_attention_dim") or config.get("cap_feat_dim")
    rest = next(f.rest for f in families() if f.pipeline == adapter.pipeline_class)
    if rest is not None and rest.ragged:
        lengths = [LENGTHS[i % len(LENGTHS)] for i in range(count)]
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        embeds = normal(count, max(lengths), width) * mask[..., None]
        tensors = {"prompt_embeds": embeds, MASK: mask}
        return Conditioning(tensors, ragged=("prompt_embeds", MASK)).trimmed()
    extra = rest.extra_tokens if rest is not None else 0
    tensors = {"prompt_embeds": normal(count, extra + adapter.max_tokens, width)}
    if "pooled_projection_dim" in config:
        tensors["pooled_prompt_embeds"] = normal(count, config["pooled_projection_dim"])
    return Conditioning(tensors)
