"""Puts the trained parts into a `StableDiffusion3Pipeline` folder that stock diffusers opens."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

from .generator import Generator
from .tokenizer import build_tokenizer


def save_pipeline(
    folder: Path, model: Generator, vae: AutoencoderKL, words: list[str], *, shift: float
) -> None:
    """Writes fp16 safetensors."""
    tokenizer = build_tokenizer(words)
    pipeline = StableDiffusion3Pipeline(
        transformer=model.transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=vae,
        text_encoder=model.text_encoder,
        tokenizer=tokenizer,
        text_encoder_2=model.text_encoder_2,
        tokenizer_2=tokenizer,
        text_encoder_3=model.text_encoder_3,
        tokenizer_3=tokenizer,
    )
    pipeline.to("cpu", torch.float16).save_pretrained(folder)
    _name_public_tokenizer_class(folder)


def _name_public_tokenizer_class(folder: Path) -> None:
    """transformers 5 writes the name of an internal class that transformers 4 does not have."""
    public = "PreTrainedTokenizerFast"
    index = folder / "model_index.json"
    data = json.loads(index.read_text())
    for part in ("tokenizer", "tokenizer_2", "tokenizer_3"):
        data[part] = ["transformers", public]
        config = folder / part / "tokenizer_config.json"
        fields = json.loads(config.read_text()) | {"tokenizer_class": public}
        config.write_text(json.dumps(fields, indent=2) + "\n")
    index.write_text(json.dumps(data, indent=2) + "\n")
