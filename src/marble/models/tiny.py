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


def lively(model: Any, gain: float = 2.0) -> Any:
    """The model with larger weights: a fresh one hardly looks at its prompt."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain)
    return model


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


#: A language model of one layer, for the text encoders of newer families.
LANGUAGE_MODEL: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def gemma_tokenizer() -> Any:
    """Every printable character is a token."""
    from transformers import GemmaTokenizer

    letters = ["▁", "\n", *map(chr, range(33, 127))]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocabulary = {piece: i for i, piece in enumerate([*special, *letters])}
    return GemmaTokenizer(vocab=vocabulary, merges=[], model_max_length=4096)


def chat_tokenizer() -> Any:
    """Every byte is a token; messages in the manner of Qwen."""
    from tokenizers import pre_tokenizers
    from transformers import Qwen2Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Qwen2Tokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=4096
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
