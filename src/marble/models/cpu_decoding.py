"""A decoder's convolutions on a CPU: cheaper, and pictures stay what they are.

Two things are done to a copy of it. The convolutions inside its residual branches multiply in bf16;
what the branches are added to, the norms' statistics, and the first and last convolution stay fp32
(a decoder that is bf16 throughout moves every 250th number by two levels or more). And an enlarging
by two with the convolution that follows becomes one convolution of the small picture: each of the
four pixels that a pixel becomes sees only 2 × 2 different ones, so that 4 products replace 9.

Whether pictures stay the same is measured on fixed ones when the copy is made, so that a run and
its resumed half decide alike: at most one level of 255 apart in 99.9 % of the numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from diffusers import AutoencoderKL
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D
from torch import Tensor, nn
from torch.nn import functional as F

from marble.models.decoding import SAME, levels
from marble.models.quiet import quiet

LOW = torch.bfloat16
CHECKED, FIELDS, NOISE = 8, 4, 0.5
"""Fixed latents that decide: how many, coloured fields along a side, and how much noise."""


class CpuDecoder:
    """Latents as the decoder takes them → what it gives, in fp32."""

    def __init__(self, vae: Any, say: Callable[[str], None]) -> None:
        self._vae = vae
        if type(vae) is AutoencoderKL:
            fast = fast_vae(vae)
            found = same(vae, fast)
            share = f"{100 * found:.2f} % of a picture's numbers are within one level of fp32"
            if found >= SAME:
                self._vae = fast
                say(f"decoding partly in bf16: {share}")
            else:
                say(f"decoding in fp32: partly in bf16 only {share}")

    def __call__(self, latents: Tensor) -> Tensor:
        decoded: Tensor = self._vae.decode(latents, return_dict=False)[0]
        return decoded.float()


@torch.no_grad()
def same(vae: Any, other: Any) -> float:
    """The share of numbers that two decoders put at most one level apart, on fixed latents:
    encoded fields of random colours, and noise, since sampled latents are less regular."""
    side = FIELDS * 2 ** len(vae.config.block_out_channels)
    generator = torch.Generator().manual_seed(0)
    fields = 2 * torch.rand(CHECKED, 3, FIELDS, FIELDS, generator=generator) - 1
    latents = vae.encode(F.interpolate(fields, side)).latent_dist.mode()
    noise = torch.randn(latents.shape, generator=generator)
    latents = latents + NOISE * latents.std() * noise
    latents = latents.contiguous(memory_format=torch.channels_last)
    one, two = (levels(v.decode(latents, return_dict=False)[0].float()) for v in (vae, other))
    return float(((one - two).abs() <= 1).double().mean())


def fast_vae(vae: Any) -> Any:
    """A copy as above, without the half that encodes; parts of other makes stay as they are."""
    with quiet():
        other = copy.deepcopy(vae, {id(vae.encoder): nn.Identity()})
    for module in list(other.decoder.modules()):
        if type(module) is ResnetBlock2D:
            for conv in (module.conv1, module.conv2):
                if type(conv) is nn.Conv2d:
                    conv.__class__ = LowConv
                    conv.to(LOW)
        elif type(module) is Upsample2D and _doubles(module):
            module.__class__ = FoldedUpsample
            inner: Any = module.conv
            inner.weight = nn.Parameter(folded(inner.weight), requires_grad=False)
    other.decoder.to(memory_format=torch.channels_last)
    return other


class LowConv(nn.Conv2d):
    """A convolution with bf16 weights of whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def _doubles(module: Any) -> bool:
    conv = module.conv if module.use_conv and not module.use_conv_transpose else None
    return (
        type(conv) is nn.Conv2d
        and module.interpolate
        and module.norm is None
        and conv.kernel_size == (3, 3)
        and conv.padding == (1, 1)
        and conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
    )


def folded(weight: Tensor) -> Tensor:
    """[O, I, 3, 3] after an enlarging by two → [4·O, I, 2, 2] before it.

    Of three neighbouring pixels of the large picture two are the same small one: their weights are
    added. Output channels come as (row, column) of the large pixel within the small one, then O.
    """
    rows = [_pairs(weight, 2, at) for at in (0, 1)]
    return torch.cat([_pairs(row, 3, at) for row in rows for at in (0, 1)])


def _pairs(weight: Tensor, axis: int, at: int) -> Tensor:
    first, middle, last = weight.split(1, axis)
    return torch.cat([first, middle + last] if at == 0 else [first + middle, last], axis)


class FoldedUpsample(Upsample2D):
    """Nearest-neighbour enlarging by two and a 3 × 3 convolution, in one (`folded`)."""

    def forward(self, hidden_states: Tensor, output_size: Any = None, *_: Any, **__: Any) -> Tensor:
        x: Tensor = hidden_states
        conv: Any = self.conv
        if output_size is not None:
            raise ValueError("a folded enlarging has one size: twice its input's")
        count, height, width = len(x), *x.shape[2:]
        wide = F.conv2d(x, conv.weight, padding=1).permute(0, 2, 3, 1)
        size = conv.out_channels
        out = wide.new_empty(count, height, 2, width, 2, size)
        for row in (0, 1):
            for column in (0, 1):
                part = slice((2 * row + column) * size, (2 * row + column + 1) * size)
                seen = wide[:, row : row + height, column : column + width, part]
                if conv.bias is None:
                    out[:, :, row, :, column].copy_(seen)
                else:
                    torch.add(seen, conv.bias, out=out[:, :, row, :, column])
        return out.view(count, 2 * height, 2 * width, size).permute(0, 3, 1, 2)
