"""Parts for random pipelines of a few thousand weights: tests run over every family with them.

Same classes and files as the real ones, so code that runs on them runs on the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import CLIPTokenizer, T5EncoderModel, T5Tokenizer

WIDTH = 32


def save(build: Callable[[], Any], folder: str | Path, seed: int) -> Path:
    """Builds a pipeline from random weights of this seed, saves it and says where."""
    from marble.models.quiet import quiet

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = build()
    with quiet():
        pipeline.save_pretrained(folder)
    return Path(folder)


def kl_vae(**changes: Any) -> Any:
    """Pictures twice the latents' side, four channels."""
    from diffusers import AutoencoderKL

    config: dict[str, Any] = {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 4,
        "block_out_channels": (8, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "shift_factor": 0.06,
        "scaling_factor": 1.5,
    }
    return AutoencoderKL(**(config | changes))


def clip_tokenizer(tokens: int) -> CLIPTokenizer:
    """Every byte is a token, inside a word and at its end: no merges, nothing unknown."""
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(a + "</w>" for a in alphabet), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=tokens)


def clip(tokenizer: CLIPTokenizer, kind: str = "CLIPTextModelWithProjection") -> Any:
    import transformers

    config = transformers.CLIPTextConfig(
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
    return getattr(transformers, kind)(config).eval()


def t5_tokenizer() -> T5Tokenizer:
    from transformers import T5Tokenizer

    letters = [("▁", -2.0), *((chr(c), -3.0) for c in range(33, 127))]
    return T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters], extra_ids=0)


def t5() -> T5EncoderModel:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=128, d_model=2 * WIDTH, d_kv=16, d_ff=WIDTH, num_layers=1, num_heads=2
    )
    return T5EncoderModel(config).eval()
