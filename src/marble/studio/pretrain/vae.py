"""Trains the studio's autoencoder: 64×64×3 pictures ↔ 8×8×16 latents; signs stay readable."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from .common import Budget, Recorded, WeightAverage, autocast, batches, cosine_lr, to_unit

PEAK_LR = 1.5e-3


def new_vae() -> AutoencoderKL:
    """An `AutoencoderKL` as in SD3: 16 latent channels, no quant convolutions."""
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 48, 96, 96),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=8,
        sample_size=64,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        force_upcast=False,
    )


def _edges(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 1:, :] - x[..., :-1, :], x[..., :, 1:] - x[..., :, :-1]


def reconstruction_loss(x_hat: Tensor, x: Tensor) -> Tensor:
    """L1 and L2 on pixels, L1 on edges: edges keep the strokes of letters crisp without a GAN."""
    loss = (x_hat - x).abs().mean() + (x_hat - x).square().mean()
    for e_hat, e in zip(_edges(x_hat), _edges(x)):
        loss = loss + 0.5 * (e_hat - e).abs().mean()
    return loss


def train_vae(
    images: Tensor, device: torch.device, budget: Budget, *, batch: int = 256, kl: float = 3e-4
) -> AutoencoderKL:
    """Trains on uint8 `images` [n, 3, 64, 64]; sets scale and shift of its latents."""
    vae: Any = new_vae()
    vae = vae.to(device).to(memory_format=torch.channels_last).train()
    parameters, on_gpu = list(vae.parameters()), device.type == "cuda"
    optimiser = torch.optim.AdamW(
        parameters,
        lr=torch.tensor(PEAK_LR, device=device) if on_gpu else PEAK_LR,
        betas=(0.9, 0.99),
        weight_decay=1e-4,
        fused=on_gpu,
        capturable=on_gpu,
    )
    average = WeightAverage([vae], decay=0.998)

    def step(pictures: Tensor) -> Tensor:
        x = to_unit(pictures).contiguous(memory_format=torch.channels_last)
        with autocast(device):
            mean, logvar = vae.encoder(x).float().chunk(2, dim=1)
            logvar = logvar.clamp(-30, 20)
            z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
            x_hat = vae.decoder(z)
        kl_mean = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        loss = reconstruction_loss(x_hat.float(), x) + kl * kl_mean
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        return loss.detach()

    run = Recorded(step, [optimiser])
    for number, index in enumerate(batches(len(images), batch, 1, images.device)):
        done = budget.fraction(number)
        if done >= 1:
            break
        cosine_lr(optimiser, PEAK_LR, number, done)
        loss = run(images[index].to(device))
        average.update(number)
        if number % 200 == 0:
            print(f"vae {number:6d}  {done:4.0%}  loss {loss.item():.4f}", flush=True)
    average.copy_to_live()
    vae = vae.eval().to(memory_format=torch.contiguous_format)
    sample = encode_latents(vae, images[: min(len(images), 8192)], device, scaled=False).float()
    shift, scale = sample.mean().item(), 1 / sample.std().item()
    vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    return vae


@torch.no_grad()
def encode_latents(
    vae: Any,
    images: Tensor,
    device: torch.device,
    *,
    scaled: bool = True,
    batch: int = 1024,
) -> Tensor:
    """Posterior means [n, 16, 8, 8] in fp16 on `device`, scaled as the transformer sees them."""
    parts = []
    for start in range(0, len(images), batch):
        x = to_unit(images[start : start + batch].to(device))
        with autocast(device):
            z = vae.encode(x).latent_dist.mean.float()
        if scaled:
            z = (z - vae.config.shift_factor) * vae.config.scaling_factor
        parts.append(z.half())
    return torch.cat(parts)


@torch.no_grad()
def decode_latents(vae: Any, latents: Tensor) -> Tensor:
    """Scaled latents → uint8 [n, 3, 64, 64] on the CPU."""
    z = latents.float() / vae.config.scaling_factor + vae.config.shift_factor
    x = vae.decode(z).sample.float()
    return ((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
