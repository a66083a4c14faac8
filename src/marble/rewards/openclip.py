"""Checkpoints in open_clip's layout as transformers' ``CLIPModel``: same network, other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from marble.errors import MarbleError

#: Name of a part of a residual block there → here; attention's input projection is split apart.
_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_WHOLE = {
    "logit_scale": "logit_scale",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
}
_TURNED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}


def to_transformers(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights under transformers' names."""
    out: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        key = key.removeprefix("module.")
        if key in _WHOLE:
            out[_WHOLE[key]] = value
        elif key in _TURNED:
            out[_TURNED[key]] = value.T.contiguous()
        elif "transformer.resblocks." in key:
            out.update(_block(key, value))
    return out


def _block(key: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    tower = "vision_model" if key.startswith("visual.") else "text_model"
    number, part = key.split("resblocks.")[1].split(".", 1)
    prefix = f"{tower}.encoder.layers.{number}"
    if part.startswith("attn.in_proj_"):
        kind = part.removeprefix("attn.in_proj_")
        names = ("q_proj", "k_proj", "v_proj")
        return {f"{prefix}.self_attn.{n}.{kind}": v for n, v in zip(names, value.chunk(3))}
    name, kind = part.rsplit(".", 1)
    return {f"{prefix}.{_BLOCK[name]}.{kind}": value} if name in _BLOCK else {}


def load_openclip(file: Path, config_folder: Path) -> Any:
    """A ``CLIPModel`` from a ``.pt`` of tensors; its base model's ``config.json`` shapes it."""
    from transformers import CLIPConfig, CLIPModel

    from marble.models.quiet import quiet

    try:
        raw = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        state = to_transformers(raw.get("state_dict", raw))
        config = CLIPConfig.from_pretrained(config_folder)
        with quiet():  # this way no random weights are drawn first, which takes a minute for CLIP-H
            loaded: Any = CLIPModel.from_pretrained(
                None, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:
        raise MarbleError(f"cannot load the CLIP model in {file}: {error}") from error
    model, report = loaded
    problems = [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]
    if problems:
        raise MarbleError(
            f"cannot load the CLIP model in {file}: {problems[0]} is missing or does not fit the "
            f"configuration in {config_folder}"
        )
    return model
