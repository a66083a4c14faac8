"""How pictures of the world are spoiled, mildly and badly, and what "good-looking" means.

Batched tensor code, so that training sees fresh variants every step on the GPU. Pictures are
float ``[n, 3, 64, 64]`` in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def mild(x: Tensor) -> Tensor:
    """What a decoder or a file format does to a good picture: soft, slightly noisy, tinted, blocky.

    A reward must not care: it is trained on these as if they were clean.
    """
    n = len(x)
    x = x + _rand(x, 0.0, 0.9) * (_blur(x, 0.7) - x)
    x = (x - 0.5) * (1 + _randn(x, 0.05)) + 0.5 + _randn(x, 0.02)
    x = x * (1 + 0.04 * torch.randn(n, 3, 1, 1, device=x.device))
    x = torch.where(_rand(x, 0, 1) < 0.3, _quantise(x, _rand(x, 0.01, 0.08)), x)
    x = x + torch.randn_like(x) * _rand(x, 0.0, 0.03)
    return x.clamp(0, 1)


def spoil(
    x: Tensor,
    severity: Tensor,
    latent_noise: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Each picture damaged in one of several ways, by ``severity`` ``[n]`` in [0, 1].

    Ways go by position in the (shuffled) batch. ``latent_noise(x, strength)`` disturbs the
    picture in the autoencoder's latents: what an undertrained generator's mistakes look like.
    """
    ways: list[Callable[[Tensor, Tensor], Tensor]] = [
        _noisy,
        _blurred,
        _pixelated,
        _shuffled,
        _wavy,
        _ghosted,
        _faded,
    ]
    ways += [_smeared, _misprinted, _blotched, _darkened, _wavy]  # waves are the hardest to see
    if latent_noise is not None:
        ways += [latent_noise] * 3
    pieces = zip(ways, x.tensor_split(len(ways)), severity.tensor_split(len(ways)))
    out = [way(part, s.view(-1, 1, 1, 1)) if len(part) else part for way, part, s in pieces]
    return torch.cat(out).clamp(0, 1)


def melted(x: Tensor) -> Tensor:
    """Shapes run together beyond recognition, colours kept: an undertrained generator's objects."""
    return _wavy(x, _rand(x, 1.0, 1.8))


def beauty(x: Tensor) -> Tensor:
    """Look features of pictures, ``[n, 4]``: vivid, warm, centred, calm.

    - vivid: mean saturation (max − min of the channels);
    - warm: mean of red − blue;
    - centred: how much of what differs from the border colour lies within the middle third, and
      how large it is, so a big central subject scores and an empty picture does not;
    - calm: minus the standard deviation of the outer ring.
    """
    vivid = (x.amax(1) - x.amin(1)).mean((1, 2))
    warm = (x[:, 0] - x[:, 2]).mean((1, 2))
    side = x.shape[-1]
    ring = torch.ones(side, side, device=x.device, dtype=torch.bool)
    ring[5:-5, 5:-5] = False
    border = x[:, :, ring]
    back = border.median(-1).values[..., None, None]
    subject = ((x - back).abs().amax(1) - 0.12).clamp(0, 0.3) / 0.3
    axis = torch.linspace(-1, 1, side, device=x.device)
    near = torch.exp(-2.5 * (axis[:, None] ** 2 + axis[None] ** 2))
    area = (subject * near).sum((1, 2)) / near.sum()
    stray = (subject * (1 - near)).sum((1, 2)) / (1 - near).sum()
    centred = area - 0.5 * stray
    calm = -border.std(-1).mean(1)
    return torch.stack([vivid, warm, centred, calm], 1)


BEAUTY_WEIGHTS = (0.35, 0.3, 0.3, 0.2)
DAMAGE_WEIGHT = 2.5


def aesthetic_label(features: Tensor, mean: Tensor, std: Tensor, damage: Tensor) -> Tensor:
    """5.5 + Σ w_j z_j − 2.5 · damage, z the standardised look features (cut at ±2.5).

    Another notion of good than the preference score: it does not read the prompt, and a vivid,
    warm, centred picture beats a faithful one.
    """
    z = ((features - mean) / std).clamp(-2.5, 2.5)
    return 5.5 + z @ z.new_tensor(BEAUTY_WEIGHTS) - DAMAGE_WEIGHT * damage


def _rand(x: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(len(x), 1, 1, 1, device=x.device)


def _randn(x: Tensor, std: float) -> Tensor:
    return std * torch.randn(len(x), 1, 1, 1, device=x.device)


def _blur(x: Tensor, sigma: float) -> Tensor:
    radius = max(1, math.ceil(2.5 * sigma))
    taps = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device=x.device) / sigma) ** 2)
    taps = (taps / taps.sum()).to(x.dtype).expand(3, 1, -1)
    x = F.pad(x, (radius,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(x, taps[:, :, None, :], groups=3), taps[..., None], groups=3)


def _dct(device: torch.device) -> Tensor:
    k = torch.arange(8, device=device)
    basis = torch.cos(math.pi * (k[None] + 0.5) * k[:, None] / 8) * math.sqrt(2 / 8)
    basis[0] /= math.sqrt(2)
    return basis


def _quantise(x: Tensor, step: Tensor) -> Tensor:
    """JPEG's loss: 8 × 8 cosine coefficients rounded, high frequencies more coarsely."""
    n, c, h, w = x.shape
    basis = _dct(x.device)
    blocks = x.view(n, c, h // 8, 8, w // 8, 8).transpose(3, 4)
    k = torch.arange(8, device=x.device)
    steps = step.view(n, 1, 1, 1, 1, 1) * (1 + (k[:, None] + k[None]) / 2)
    coefficients = basis @ blocks @ basis.T
    blocks = basis.T @ ((coefficients / steps).round() * steps) @ basis
    return blocks.transpose(3, 4).reshape(n, c, h, w)


def _noisy(x: Tensor, s: Tensor) -> Tensor:
    return x + torch.randn_like(x) * (0.04 + 0.3 * s)


def _blurred(x: Tensor, s: Tensor) -> Tensor:
    light, heavy = _blur(x, 1.4), _blur(x, 3.5)
    return torch.where(
        s < 0.5, x + (0.4 + 1.2 * s) * (light - x), light + (2 * s - 1) * (heavy - light)
    )


def _pixelated(x: Tensor, s: Tensor) -> Tensor:
    side, step = x.shape[-1], int(torch.randint(3, 7, ()))
    coarse = F.interpolate(F.interpolate(x, size=side // step, mode="area"), size=side)
    return torch.lerp(x, coarse, 0.3 + 0.7 * s)


def _shuffled(x: Tensor, s: Tensor) -> Tensor:
    """A share of the 8 × 8 blocks taken from elsewhere in the picture."""
    n = len(x)
    blocks = x.view(n, 3, 8, 8, 8, 8).permute(0, 2, 4, 1, 3, 5).reshape(n, 64, 3, 8, 8)
    moved = torch.rand(n, 64, device=x.device) < (0.06 + 0.5 * s.view(-1, 1))
    source = torch.where(
        moved,
        torch.randint(64, (n, 64), device=x.device),
        torch.arange(64, device=x.device).expand(n, 64),
    )
    blocks = blocks[torch.arange(n, device=x.device)[:, None], source]
    return blocks.view(n, 8, 8, 3, 8, 8).permute(0, 3, 1, 4, 2, 5).reshape(n, 3, 64, 64)


def _wavy(x: Tensor, s: Tensor) -> Tensor:
    """Smoothly displaced by a random low-frequency field."""
    field = torch.randn(len(x), 2, 8, 8, device=x.device)
    field = F.interpolate(field, size=x.shape[-2:], mode="bicubic", align_corners=False)
    axis = torch.linspace(-1, 1, x.shape[-1], device=x.device)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
    shift = field.permute(0, 2, 3, 1) * (0.03 + 0.16 * s)
    return F.grid_sample(x, grid + shift, padding_mode="reflection", align_corners=True)


def _ghosted(x: Tensor, s: Tensor) -> Tensor:
    return torch.lerp(x, x.roll(1, 0), (0.12 + 0.4 * s))


def _faded(x: Tensor, s: Tensor) -> Tensor:
    grey = x.mean((1, 2, 3), keepdim=True)
    return torch.lerp(x, grey.expand_as(x), 0.35 + 0.6 * s)


def _smeared(x: Tensor, s: Tensor) -> Tensor:
    """Moved while the shutter was open."""
    along = -1 if torch.rand(()) < 0.5 else -2
    trail = torch.stack([x.roll(k, along) for k in range(-3, 4)]).mean(0)
    return torch.lerp(x, trail, 0.3 + 0.7 * s)


def _blotched(x: Tensor, s: Tensor) -> Tensor:
    """Coloured noise of low frequency."""
    coarse = torch.randn(len(x), 3, 8, 8, device=x.device)
    return x + F.interpolate(coarse, size=x.shape[-2:], mode="bicubic") * (0.05 + 0.12 * s)


def _darkened(x: Tensor, s: Tensor) -> Tensor:
    return x * (0.65 - 0.45 * s)


def _misprinted(x: Tensor, s: Tensor) -> Tensor:
    """Channels slid apart."""
    shifted = torch.stack([x[:, 0].roll(3, -1), x[:, 1], x[:, 2].roll(-3, -2)], 1)
    return torch.lerp(x, shifted, 0.25 + 0.75 * s)
