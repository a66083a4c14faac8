"""A random Stable Diffusion 3 pipeline of a few thousand weights, for tests and benchmarks.

Same classes and files as the real one, so code that runs on it runs on the real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from tokenizers import pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from marble.models.quiet import quiet

WIDTH = 32


def save_tiny_sd3(
    folder: str | Path,
    *,
    t5: bool = False,
    seed: int = 0,
    sample_size: int = 8,
    shift: float = 3.0,
    layers: int = 2,
    width: int = WIDTH,
    tokens: int = 77,
    scheduler: dict[str, Any] | None = None,
) -> Path:
    """Saves a tiny `StableDiffusion3Pipeline` (pictures of 2·sample_size pixels) and says where."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = _pipeline(t5, sample_size, shift, layers, width, tokens, scheduler or {})
    with quiet():
        pipeline.save_pretrained(folder)
    return Path(folder)


def _pipeline(
    t5: bool,
    sample_size: int,
    shift: float,
    layers: int,
    width: int,
    tokens: int,
    scheduler: dict[str, Any],
) -> Any:
    transformer = SD3Transformer2DModel(
        sample_size=sample_size,
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=layers,
        attention_head_dim=width // 2,
        num_attention_heads=2,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=width,
        pooled_projection_dim=2 * WIDTH,
        pos_embed_max_size=2 * sample_size,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.06,
        scaling_factor=1.5,
    )
    tokenizer = _clip_tokenizer(tokens)
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift, **scheduler),
        vae=vae,
        text_encoder=_clip(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=_clip(tokenizer),
        tokenizer_2=tokenizer,
        text_encoder_3=_t5() if t5 else None,
        tokenizer_3=_t5_tokenizer() if t5 else None,
    )


def _clip_tokenizer(tokens: int) -> CLIPTokenizer:
    """Every byte is a token, inside a word and at its end: no merges, nothing unknown."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(a + "</w>" for a in alphabet), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=tokens)


def _clip(tokenizer: CLIPTokenizer) -> CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModelWithProjection(config).eval()


def _t5_tokenizer() -> T5Tokenizer:
    letters = [("▁", -2.0), *((chr(c), -3.0) for c in range(33, 127))]
    return T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters], extra_ids=0)


def _t5() -> T5EncoderModel:
    config = T5Config(
        vocab_size=128, d_model=2 * WIDTH, d_kv=16, d_ff=WIDTH, num_layers=1, num_heads=2
    )
    return T5EncoderModel(config).eval()
