"""A tiny random CLIP checkpoint of the real architecture and file layout."""

from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPModel

from marble.rewards.preprocess import Preprocess
from marble.studio.pretrain.tokenizer import build_tokenizer

WORDS = ["a", "photo", "of", "the", "red", "green", "dog", "cat", "and", "object", "colored", "-"]


def new_tiny_clip(folder: Path, seed: int = 0, side: int = 32) -> Path:
    """A random CLIP in a folder as on the hub: model, tokenizer, preprocessing."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(WORDS)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 12,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": side,
        "patch_size": 8,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    with torch.no_grad():  # random weights give nearly constant embeddings: spread them
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(6)
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Preprocess(short_side=side, crop=side).to_file(folder)
    return folder
