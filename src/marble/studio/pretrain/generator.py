"""Trains the studio's generator: an MMDiT and its three text encoders, jointly, by flow matching.

Everything is a stock class, so the result is an ordinary `StableDiffusion3Pipeline`. Two choices
are the studio's own. Captions of the training set are *sloppy* (see `world`), which gives the base
model the headroom that Stable Diffusion has without guidance. And the prompt reaches the model
through the CLIP encoders; the T5 is one small layer that SD3 wants to see. Most steps give it two
tokens, some the 256 that diffusers asks for by default, so that the model draws well either way,
and fast with two.
"""

from __future__ import annotations

import copy
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

from .common import Budget, WeightAverage, autocast, batches, cosine_lr
from .tokenizer import MAX_LENGTH

TEXT_WIDTHS = (128, 64)
JOINT = sum(TEXT_WIDTHS)
SHORT, LONG = 2, 256  # tokens that T5 sees
# Every 12th step takes the long form, on few samples: each costs over four times as much.
LONG_EVERY = 12


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


def train_generator(
    latents: Tensor,
    ids: Tensor,
    empty_ids: Tensor,
    vocabulary: int,
    device: torch.device,
    seconds: float,
    *,
    batch: int = 2048,
    peak_lr: float = 1.5e-3,
    start: Generator | None = None,
) -> tuple[Generator, Generator]:
    """Flow matching on scaled `latents` [n, 16, 8, 8] with token `ids` [n, 16]; 8 % of the captions
    are dropped so that guidance works too. `start`: one to go on from. Returns the
    averaged weights, and those after 40 % of the time: the weaker model that `refine` wants."""
    model = (Generator(vocabulary, eos=1) if start is None else start).to(device).train()
    average = WeightAverage([model], decay=0.9995)
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=peak_lr,
        betas=(0.9, 0.99),
        weight_decay=0.01,
        fused=device.type == "cuda",
    )
    # Only the usual, short form is compiled, with fixed shapes; the rare long form runs as it is.
    weaker: Generator | None = None
    compiled: Callable[..., Any] = model.transformer
    if device.type == "cuda":
        compiled = torch.compile(model.transformer, dynamic=False, fullgraph=True)
    budget = Budget(seconds)
    empty_ids = empty_ids.to(device)
    for step, index in enumerate(batches(len(latents), batch, 2, latents.device)):
        if step == LONG_EVERY:
            budget = Budget(seconds)  # compilation is not training time
        done = budget.fraction(step)
        if done >= 1:
            break
        cosine_lr(optimiser, peak_lr, step, done)
        long = step % LONG_EVERY == LONG_EVERY - 1
        if long:
            index = index[: max(16, batch // 16)]
        x_0, tokens = latents[index].to(device).float(), ids[index].to(device)
        n = len(x_0)
        tokens = torch.where(torch.rand(n, 1, device=device) < 0.08, empty_ids, tokens)
        sigma = torch.sigmoid(torch.randn(n, device=device) * 1.1 + 0.3)
        noise = torch.randn_like(x_0)
        s = sigma.view(-1, 1, 1, 1)
        with autocast(device):
            x_t = (1 - s) * x_0 + s * noise
            if long:
                v = model(x_t, sigma, tokens, LONG)
            else:
                v = model(x_t, sigma, tokens, SHORT, compiled)
        loss = F.mse_loss(v.float(), noise - x_0)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        average.update(step)
        if weaker is None and done >= 0.4:
            weaker = average.copy_of(model)
        if step % 500 == 0:
            print(f"generator {step:6d}  {done:4.0%}  loss {loss.item():.4f}", flush=True)
    average.copy_to_live()
    return model.eval(), copy.deepcopy(model) if weaker is None else weaker


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
    sigmas = torch.linspace(1, 1 / 1000, steps, device=device)
    sigmas = torch.cat([shift * sigmas / (1 + (shift - 1) * sigmas), sigmas.new_zeros(1)])
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
