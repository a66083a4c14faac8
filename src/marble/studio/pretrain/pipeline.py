"""Puts the trained parts into a `StableDiffusion3Pipeline` folder that stock diffusers opens."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

from .generator import Generator
from .tokenizer import build_tokenizer


def save_pipeline(
    folder: Path, model: Generator, vae: AutoencoderKL, words: list[str], *, shift: float
) -> None:
    """Writes fp16 safetensors; the model itself stays as and where it is."""
    model, vae = copy.deepcopy(model), copy.deepcopy(vae)
    tokenizer = build_tokenizer(words)
    pipeline: Any = StableDiffusion3Pipeline(
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
    _make_portable(folder)


def _make_portable(folder: Path) -> None:
    """Tokenizers under the class name that every transformers has, and text encoders that open
    in fp32 like the rest (transformers would follow the stored fp16, which a CPU cannot run); no
    path of the machine that made it."""
    public = "PreTrainedTokenizerFast"
    for part in ("", "_2", "_3"):
        _update(folder / f"tokenizer{part}/tokenizer_config.json", {"tokenizer_class": public})
        _update(folder / f"text_encoder{part}/config.json", {"dtype": "float32"})
        _update(folder / "model_index.json", {f"tokenizer{part}": ["transformers", public]})
    _update(folder / "vae/config.json", {}, drop="_name_or_path")


def _update(path: Path, fields: dict, drop: str = "") -> None:
    kept = {k: v for k, v in json.loads(path.read_text()).items() if k != drop}
    path.write_text(json.dumps(kept | fields, indent=2) + "\n")
