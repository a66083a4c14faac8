"""The studio's generator: an MMDiT and its three text encoders, trained jointly by `flow`.

Everything is a stock class, so the result is an ordinary `StableDiffusion3Pipeline`. The prompt
reaches the model through the CLIP encoders; the T5 is one small layer that SD3 wants to see. Most
steps of training give it two tokens, some the 256 that diffusers asks for by default, so that the
model draws well either way, and fast with two.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import SD3Transformer2DModel
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
)

from .common import autocast
from .tokenizer import MAX_LENGTH

TEXT_WIDTHS = (128, 64)
JOINT = sum(TEXT_WIDTHS)
SHORT, LONG = 2, 256  # tokens that T5 sees


def new_text_encoder(
    width: int, layers: int, vocabulary: int, eos: int
) -> CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        max_position_embeddings=MAX_LENGTH,
        hidden_act="gelu",
        bos_token_id=0,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    return CLIPTextModelWithProjection(config)


def new_t5(vocabulary: int) -> T5EncoderModel:
    config = T5Config(
        vocab_size=vocabulary,
        d_model=JOINT,
        d_kv=32,
        d_ff=JOINT,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        eos_token_id=1,
        pad_token_id=1,
        is_encoder_decoder=False,
        use_cache=False,
    )
    return T5EncoderModel(config)


def new_transformer(width: int = 160, layers: int = 5) -> SD3Transformer2DModel:
    """SD3.5's transformer (RMS-normed queries, dual attention in the first layer), small."""
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=16,
        num_layers=layers,
        attention_head_dim=32,
        num_attention_heads=width // 32,
        joint_attention_dim=JOINT,
        caption_projection_dim=width,
        pooled_projection_dim=JOINT,
        out_channels=16,
        pos_embed_max_size=8,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )


class Generator(nn.Module):
    """Prompt ids, noisy latents and noise level → velocity, exactly as the pipeline computes it."""

    def __init__(self, vocabulary: int, eos: int) -> None:
        super().__init__()
        self.text_encoder = new_text_encoder(TEXT_WIDTHS[0], 4, vocabulary, eos)
        self.text_encoder_2 = new_text_encoder(TEXT_WIDTHS[1], 3, vocabulary, eos)
        self.text_encoder_3 = new_t5(vocabulary)
        self.transformer: Any = new_transformer()

    def load_parts(self, folder: Path) -> None:
        """Takes the weights of a saved pipeline, to train on from there."""
        for name, part in self.named_children():
            [file] = (folder / name).glob("*.safetensors")
            part.load_state_dict({k: v.float() for k, v in load_file(file).items()}, strict=False)

    def context(self, ids: Tensor, t5_length: int = SHORT) -> tuple[Tensor, Tensor]:
        outputs = [
            e(ids, output_hidden_states=True) for e in (self.text_encoder, self.text_encoder_2)
        ]
        clip = torch.cat([o.hidden_states[-2] for o in outputs], dim=-1)
        pooled = torch.cat([o.text_embeds for o in outputs], dim=-1)
        t5 = self.text_encoder_3(_resize(ids, t5_length))[0]
        return torch.cat([clip, t5.to(clip.dtype)], dim=1), pooled

    def forward(
        self,
        x: Tensor,
        sigma: Tensor,
        ids: Tensor,
        t5_length: int = SHORT,
        transformer: Callable[..., Any] | None = None,
    ) -> Tensor:
        """`transformer` may be the compiled form of the model's own."""
        tokens, pooled = self.context(ids, t5_length)
        network = self.transformer if transformer is None else transformer
        return network(
            hidden_states=x,
            timestep=sigma * 1000,
            encoder_hidden_states=tokens,
            pooled_projections=pooled,
            return_dict=False,
        )[0]


def _resize(ids: Tensor, length: int) -> Tensor:
    """What the tokenizer gives for another maximal length: padded with EOS, or cut."""
    if length >= ids.shape[1]:
        return F.pad(ids, (0, length - ids.shape[1]), value=1)
    return F.pad(ids[:, : length - 1], (0, 1), value=1)


def tokenize(tokenizer: Any, prompts: list[str]) -> Tensor:
    padded = tokenizer(prompts, padding="max_length", max_length=MAX_LENGTH, truncation=True)
    return torch.tensor(padded["input_ids"])


def schedule(steps: int, shift: float = 1.0) -> Tensor:
    """The noise levels of diffusers' flow-match scheduler, and 0 behind them."""
    sigmas = torch.linspace(1, 1 / 1000, steps)
    return torch.cat([shift * sigmas / (1 + (shift - 1) * sigmas), sigmas.new_zeros(1)])


@torch.no_grad()
def sample_latents(
    model: Generator,
    ids: Tensor,
    seed: int,
    *,
    steps: int = 10,
    shift: float = 1.0,
    batch: int = 512,
) -> Tensor:
    """Euler on the flow, no guidance; only to look at progress. The product samples elsewhere."""
    device, parts = ids.device, []
    sigmas = schedule(steps, shift).to(device)
    generator = torch.Generator("cpu").manual_seed(seed)
    for start in range(0, len(ids), batch):
        part = ids[start : start + batch]
        x = torch.randn(len(part), 16, 8, 8, generator=generator).to(device)
        for now, after in pairwise(sigmas):
            with autocast(device):
                v = model(x, now.expand(len(part)), part)
            x = x + (after - now) * v.float()
        parts.append(x)
    return torch.cat(parts)
