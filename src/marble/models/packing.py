"""Models that see latents as squares of 2×2, side by side in the channels of their tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from marble.models.pipeline import JOINT_ATTENTION, PipelineAdapter, even_levels, line_shift

DEFAULT_LATENTS = 128
"""Side of the autoencoder's latents if nothing is said, as in these pipelines."""


class PackedAdapter(PipelineAdapter):
    """Latents are packed for the transformer alone; noise levels shift with their number."""

    lora_targets = JOINT_ATTENTION

    def _shape_for(self, resolution: int | None) -> tuple[int, tuple[int, ...]]:
        scale = self.pipeline.vae_scale_factor
        side = self._side(resolution, DEFAULT_LATENTS * scale, 2 * scale)
        return side, (self.transformer.config.in_channels // 4, side // scale, side // scale)

    def grid(self, steps: int) -> Tensor:
        _, height, width = self.latent_shape
        mu = line_shift(self.pipeline.scheduler.config, (height // 2) * (width // 2))
        return self._levels(sigmas=even_levels(steps), mu=mu)


def pack(latents: Tensor) -> Tensor:
    """[B, C, H, W] → [B, H/2·W/2, 4C]."""
    b, c, h, w = latents.shape
    squares = latents.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(b, (h // 2) * (w // 2), 4 * c)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """The reverse; height and width of the latents."""
    b, _, c = tokens.shape
    squares = tokens.reshape(b, height // 2, width // 2, c // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(b, c // 4, height, width)


def positions(height: int, width: int, axes: int, device: torch.device) -> Tensor:
    """[height·width, axes] of a picture's tokens: row in axis 1, column in axis 2, else 0."""
    out = torch.zeros(height, width, axes, device=device)
    out[..., 1] = torch.arange(height, device=device)[:, None]
    out[..., 2] = torch.arange(width, device=device)
    return out.flatten(0, 1)
