"""Random weights in the layouts of the real checkpoints: pipeline, reward models, prompts.

Architectures are those of Stable Diffusion 3.5 Medium and its five rewards at full size, or a tiny
version of the same classes. Everything is drawn on the device and saved as the hub's files are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    SwinConfig,
    T5Config,
    T5EncoderModel,
)

from marble.models.quiet import quiet
from marble.models.tiny import clip_tokenizer, t5_tokenizer
from marble.rewards.aesthetic import AestheticHead
from marble.rewards.geneval.coco import COCO_CLASSES
from marble.rewards.preprocess import Preprocess
from sd35m import SD35M, TINY

#: (width, layers, heads, inner width) of the CLIP towers.
CLIP_L_TEXT, CLIP_G_TEXT, CLIP_H_TEXT = (
    (768, 12, 12, 3072),
    (1280, 32, 20, 5120),
    (1024, 24, 16, 4096),
)
CLIP_L_VISION, CLIP_H_VISION = (1024, 24, 16, 4096), (1280, 32, 16, 5120)
TINY_TOWER = (32, 2, 2, 64)
ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra")
DUAL_PARTS = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def random_model(make: Callable[[], Any], device: torch.device, dtype: torch.dtype) -> Any:
    """The library's own initialisation, drawn on the device in the precision it is saved in."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make().eval().requires_grad_(False).to(dtype)
    finally:
        torch.set_default_dtype(before)


# ---- the pipeline -----------------------------------------------------------------------------


def write_pipeline(folder: Path, device: torch.device, *, tiny: bool, full_t5: bool) -> int:
    """Saves a bf16 `StableDiffusion3Pipeline`; returns the transformer's parameter count."""

    def new(make: Callable[[], Any]) -> Any:
        return random_model(make, device, torch.bfloat16)

    tokenizer = clip_tokenizer(77)
    towers = (TINY_TOWER, TINY_TOWER) if tiny else (CLIP_L_TEXT, CLIP_G_TEXT)
    config = TINY if tiny else SD35M
    transformer = new(lambda: SD3Transformer2DModel(**_widths(config, towers)))
    count = sum(p.numel() for p in transformer.parameters())
    pipeline = StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=new(lambda: _vae(tiny)),
        text_encoder=new(lambda: _text_encoder(tokenizer, towers[0], "quick_gelu")),
        tokenizer=tokenizer,
        text_encoder_2=new(lambda: _text_encoder(tokenizer, towers[1], "gelu")),
        tokenizer_2=tokenizer,
        text_encoder_3=new(lambda: _t5(config["joint_attention_dim"], tiny, full_t5)),
        tokenizer_3=t5_tokenizer(),
    )
    with quiet():
        pipeline.save_pretrained(folder)
    return count


def _widths(config: dict[str, Any], towers: tuple[Any, Any]) -> dict[str, Any]:
    """The pooled text vector is the two CLIP encoders' side by side."""
    return config | {"pooled_projection_dim": towers[0][0] + towers[1][0]}


def _vae(tiny: bool) -> AutoencoderKL:
    channels = (8, 8, 8, 8) if tiny else (128, 256, 512, 512)
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=16,
        block_out_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1 if tiny else 2,
        norm_num_groups=4 if tiny else 32,
        sample_size=1024,
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _text_encoder(tokenizer: Any, tower: tuple[int, ...], act: str) -> CLIPTextModelWithProjection:
    width, layers, heads, inner = tower
    return CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=49408 if width > 32 else len(tokenizer),
            hidden_size=width,
            projection_dim=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            hidden_act=act,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _t5(width: int, tiny: bool, full: bool) -> T5EncoderModel:
    """T5-XXL's encoder, or one thin layer of its width: prompts are encoded once and cached."""
    layers, inner, heads = (24, 10240, 64) if full and not tiny else (1, 64, 2)
    return T5EncoderModel(
        T5Config(
            vocab_size=128 if tiny else 32128,
            d_model=width,
            d_kv=64,
            d_ff=inner,
            num_layers=layers,
            num_heads=heads,
            feed_forward_proj="gated-gelu",
        )
    )


# ---- the rewards ------------------------------------------------------------------------------


def write_rewards(root: Path, device: torch.device, *, tiny: bool) -> list[str]:
    """Saves the reward models under `root`; returns the overrides that point a recipe at them."""
    tower = TINY_TOWER
    large = (tower, tower, 24) if tiny else (CLIP_L_TEXT, CLIP_L_VISION, 768)
    huge = (tower, tower, 24) if tiny else (CLIP_H_TEXT, CLIP_H_VISION, 1024)
    write_clip(root / "clip-l", device, *large, act="quick_gelu", tiny=tiny)
    pick = write_clip(root / "pickscore", device, *huge, act="gelu", tiny=tiny)
    # HPS: another model of the same shape as one file in open_clip's names, beside its base.
    torch.save(
        {"state_dict": {k: (v * 1.01).cpu() for k, v in open_clip_names(pick).items()}},
        root / "HPS_v2.1_compressed.pt",
    )
    del pick
    head = AestheticHead([large[2], 1024, 128, 64, 16, 1])
    save_file(head.state_dict(), str(root / "aesthetic.safetensors"))
    write_detector(root / "detector", device, tiny=tiny)
    paths = {
        "clipscore.options.path": root / "clip-l",
        "pickscore.options.path": root / "pickscore",
        "hpsv2.options.path": root / "HPS_v2.1_compressed.pt",
        "hpsv2.options.processor": root / "pickscore",
        "aesthetic.options.path": root / "clip-l",
        "aesthetic.options.head": root / "aesthetic.safetensors",
        "geneval.options.path": root / "detector",
        "geneval.options.clip": root / "clip-l",
        "geneval-strict.options.path": root / "detector",
        "geneval-strict.options.clip": root / "clip-l",
    }
    return [f"rewards.{key}={path}" for key, path in paths.items()]


def write_clip(
    folder: Path,
    device: torch.device,
    text: tuple[int, ...],
    vision: tuple[int, ...],
    width: int,
    *,
    act: str,
    tiny: bool,
) -> Any:
    tokenizer = clip_tokenizer(77)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    ends = {
        "vocab_size": len(tokenizer) if tiny else 49408,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    side, patch = (32, 8) if tiny else (224, 14)
    config = CLIPConfig(
        text_config={**dict(zip(names, text)), **ends, "hidden_act": act},
        vision_config={
            **dict(zip(names, vision)),
            "image_size": side,
            "patch_size": patch,
            "hidden_act": act,
        },
        projection_dim=width,
    )
    model = random_model(lambda: CLIPModel(config), device, torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Preprocess(short_side=side, crop=side).to_file(folder)
    return model


def open_clip_names(model: Any) -> dict[str, Tensor]:
    """A `CLIPModel`'s weights under open_clip's names, attention's three inputs packed in one."""
    state = model.state_dict()
    out: dict[str, Tensor] = {
        "logit_scale": state["logit_scale"],
        "text_projection": state["text_projection.weight"].T,
        "visual.proj": state["visual_projection.weight"].T,
        "visual.class_embedding": state["vision_model.embeddings.class_embedding"],
        "visual.conv1.weight": state["vision_model.embeddings.patch_embedding.weight"],
    }
    for tower, prefix in (("text_model", ""), ("vision_model", "visual.")):
        out[f"{prefix}positional_embedding"] = state[
            f"{tower}.embeddings.position_embedding.weight"
        ]
        layers = len(getattr(model, tower).encoder.layers)
        for i in range(layers):
            here = f"{tower}.encoder.layers.{i}."
            there = f"{prefix}transformer.resblocks.{i}."
            for kind in ("weight", "bias"):
                parts = [state[f"{here}self_attn.{n}_proj.{kind}"] for n in "qkv"]
                out[f"{there}attn.in_proj_{kind}"] = torch.cat(parts)
                for ours, theirs in DUAL_PARTS.items():
                    out[f"{there}{theirs}.{kind}"] = state[f"{here}{ours}.{kind}"]
    out["token_embedding.weight"] = state["text_model.embeddings.token_embedding.weight"]
    norms = {
        "ln_final": "text_model.final_layer_norm",
        "visual.ln_pre": "vision_model.pre_layrnorm",
        "visual.ln_post": "vision_model.post_layernorm",
    }
    for theirs, ours in norms.items():
        for kind in ("weight", "bias"):
            out[f"{theirs}.{kind}"] = state[f"{ours}.{kind}"]
    return out


def write_detector(folder: Path, device: torch.device, *, tiny: bool) -> None:
    """Mask2Former on Swin-S with COCO's 80 classes, sharpened and fond of animals.

    Untouched random weights see nothing in any picture; these see some animal in each, not the
    same one, so that the GenEval reward varies and the loop has its gradient to balance.
    """
    stages = ["stage1", "stage2", "stage3", "stage4"]
    if tiny:
        shape = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
        sizes = {
            **dict.fromkeys(("feature_size", "mask_feature_size", "hidden_dim"), 32),
            **dict.fromkeys(("encoder_feedforward_dim", "dim_feedforward"), 16),
            **{"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2},
        }
    else:
        shape = {"embed_dim": 96, "depths": [2, 2, 18, 2], "num_heads": [3, 6, 12, 24]}
        sizes = {}
    config = Mask2FormerConfig(
        backbone_config=SwinConfig(image_size=224, window_size=7, out_features=stages, **shape),
        num_labels=80,
        **sizes,
    )
    model = random_model(
        lambda: Mask2FormerForUniversalSegmentation(config), torch.device("cpu"), torch.float32
    )
    with torch.no_grad():
        model.class_predictor.weight.mul_(40)
        model.class_predictor.bias[COCO_CLASSES.index("bird") :][: len(ANIMALS)] += 20
        last = [p for name, p in model.named_parameters() if "mask_embedder" in name][-2:]
        for parameter in last:
            parameter.mul_(1000)
    model.save_pretrained(folder)


# ---- prompts ----------------------------------------------------------------------------------


def write_prompts(root: Path, count: int) -> list[str]:
    """Three sources in the layouts people have; returns the overrides that name them."""
    words = ["TEA", "OPEN", "MARBLE", "EXIT", "HELLO", "CAFE", "BOOK", "SALE"]
    animals = [ANIMALS[i % len(ANIMALS)] for i in range(count)]
    general = [f"a painting of a {animal} number {i}" for i, animal in enumerate(animals)]
    ocr = [f'a sign number {i} that says "{words[i % len(words)]}"' for i in range(count)]
    geneval: list[dict[str, Any]] = [
        {
            "tag": "colors",
            "include": [{"class": animal, "count": 1, "color": "red"}],
            "prompt": f"a photo of a red {animal}",
        }
        for animal in animals
    ]
    files = {
        "pickscore/{}.txt": general,
        "ocr/{}.txt": ocr,
        "geneval/{}_metadata.jsonl": [json.dumps(line) for line in geneval],
    }
    for name, lines in files.items():
        for split in ("train", "test"):
            path = root / name.format(split)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
    folders = {"general": "pickscore", "ocr": "ocr", "geneval": "geneval"}
    return [f"data.sources.{source}.path={root / name}" for source, name in folders.items()]
