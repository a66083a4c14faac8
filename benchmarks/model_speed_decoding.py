"""Decoding in `model_speed.py`: milliseconds, and how far 16-bit pictures are from fp32's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from marble.models.pipeline import PipelineAdapter
from marble.models.quiet import quiet
from model_speed_setup import Bench

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def scaled_vae(adapter: PipelineAdapter, latents: Tensor) -> None:
    """Random weights, scaled so that pictures have the contrast of real ones."""
    vae = adapter.pipeline.vae
    with torch.no_grad():
        out = vae.decode(adapter._for_vae(latents[:1]), return_dict=False)[0]
        vae.decoder.conv_out.weight.mul_(0.5 / out.std())
        vae.decoder.conv_out.bias.sub_(out.mean() * 0.5 / out.std())


def levels(adapter: PipelineAdapter, decode: Callable[[Tensor], Tensor], latents: Tensor) -> Tensor:
    with torch.no_grad():
        picture = decode(adapter._for_vae(latents)).float()
    return ((picture / 2 + 0.5).clamp(0, 1) * 255).round()


def difference(found: Tensor, wanted: Tensor) -> dict[str, float]:
    apart = (found - wanted).abs()
    return {
        "within_one_level": float((apart <= 1).float().mean()),
        "largest": float(apart.max()),
        "finite": float(found.isfinite().float().mean()),
    }


def vae(bench: Bench, adapter: PipelineAdapter, compiled: bool = False) -> None:
    count = 2 if bench.args.tiny else 9
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn((count, *adapter.latent_shape), generator=generator).to(bench.device)
    part = adapter.pipeline.vae
    if not compiled:
        scaled_vae(adapter, latents)

    def full(z: Tensor) -> Tensor:
        return part.decode(z.float(), return_dict=False)[0]

    wanted = levels(adapter, full, latents)
    if not compiled:
        bench.take("decode, fp32", lambda: bench.ms(lambda: levels(adapter, full, latents)))
    for name, dtype in LOW.items():
        vae_in(bench, adapter, name, dtype, latents, wanted, compiled)


def vae_in(
    bench: Bench,
    adapter: PipelineAdapter,
    name: str,
    dtype: torch.dtype,
    latents: Tensor,
    wanted: Tensor,
    compiled: bool,
) -> None:
    part = adapter.pipeline.vae

    def autocast(z: Tensor) -> Tensor:
        with torch.autocast(bench.device.type, dtype=dtype):
            return part.decode(z, return_dict=False)[0]

    def low(z: Tensor) -> Tensor:
        return part.decode(z.to(dtype), return_dict=False)[0]

    def measure(decode: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        found = difference(levels(adapter, decode, latents), wanted)
        return {"ms": bench.ms(lambda: levels(adapter, decode, latents)), **found}

    if not compiled:
        bench.take(f"decode, {name} by autocast", lambda: measure(autocast))
    with in_format(part, dtype):
        if compiled:
            run = torch.compile(part.decoder, backend=bench.args.backend)
            bench.take(f"decode, {name}, compiled", lambda: measure(lambda z: run(z.to(dtype))))
        else:
            bench.take(f"decode, {name} weights", lambda: measure(low))


@contextmanager
def in_format(part: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    with quiet():
        part.to(dtype)
    try:
        yield
    finally:
        with quiet():
            part.to(torch.float32)
