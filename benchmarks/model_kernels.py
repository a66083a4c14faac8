"""Where the milliseconds of SD3.5 Medium's passes go, kernel by kernel, and what could be faster.

    python benchmarks/model_kernels.py --out FILE.json                   # on a GPU, in under 180 s
    python benchmarks/model_kernels.py --out FILE.json --only attention,decode
    python benchmarks/model_kernels.py --out FILE.json --tiny            # the same code on a CPU

attention: the model's attention by each of torch's kernels; the error is that of output and
    gradients, by fp32.
products: those of a block, for a micro-batch's picture tokens: q, k and v one by one and at once,
    their inputs' gradient likewise, the feed-forward layers, and GELU within the first one's
    product.
decode: fp16, by memory layout, as it is and compiled; the share of a picture's numbers that are
    within one level of fp32's.
step: a micro-batch of 36 with compiled blocks, in its three passes (v_old's, v_θ's, backward),
    and a forward pass of a rollout; the device's milliseconds by kind of kernel, and of the
    longest ones.

Random weights, nothing downloaded. FILE is written anew after every measurement: a failure is
written in its place, and what --seconds leave no time for is missing. Milliseconds are medians.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from marble.models import lora
from marble.models.decoding import halved, levels
from measure import device_times, timed
from model_speed_decoding import scaled_vae
from model_speed_setup import DRAWN, Bench, Model

PARTS = ("attention", "products", "decode", "step")
KERNELS = {
    "as torch chooses": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TEXT = 333
"""Tokens of a prompt."""
KINDS = {
    "attention": r"flash|fmha|attention|sdpa",
    "products": r"gemm|nvjet|cutlass|xmma|matmul|addmm|\bmm\b|bmm",
    "convolutions": r"conv|implicit|wgrad|dgrad",
    "generated": r"triton",
    "copies": r"copy|memcpy|memset|cat_",
}
"""What a kernel's name says about it; the first that fits."""


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=170, help="nothing begins after these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(words)
    args.repeats = 1 if args.tiny else args.repeats
    args.backend = "eager" if args.tiny else "inductor"
    wanted = args.only.split(",")
    if unknown := sorted(set(wanted) - set(PARTS)):
        parser.error(f"--only: there is no part {', '.join(unknown)}; choose of {', '.join(PARTS)}")
    bench = Bench(args)
    model = Model(bench)
    for name, part in zip(PARTS, (attention, products, decode, step)):
        if name in wanted:
            part(bench, model)
    return bench.result


# -- attention -------------------------------------------------------------------------------------


def attention(bench: Bench, model: Model) -> None:
    config = model.adapter.transformer.config
    heads, dim = config.num_attention_heads, config.attention_head_dim
    picture = picture_tokens(model)
    count, text = (2, 5) if bench.args.tiny else (DRAWN, TEXT)
    for tokens in (picture + text, picture):
        shape = (count, heads, tokens, dim)
        for name, kernel in KERNELS.items():
            bench.take(f"attention {shape}, {name}", partial(one_attention, bench, shape, kernel))


def one_attention(
    bench: Bench, shape: tuple[int, ...], kernel: SDPBackend | None
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(4)
    *qkv, grad = (torch.randn(shape, generator=generator).to(bench.device) for _ in range(4))
    few = [t[:1] for t in (*qkv, grad)]
    wide = attended(few[:3], few[3], SDPBackend.MATH)
    low = [t.to(torch.bfloat16) for t in (*qkv, grad)]
    found = attended([t[:1] for t in low[:3]], low[3][:1], kernel)
    with torch.no_grad(), chosen(kernel):
        forward = bench.ms(lambda: scaled_dot_product_attention(*low[:3]))
    both = bench.ms(lambda: attended(low[:3], low[3], kernel))
    count, heads, tokens, dim = shape
    flop = 4 * count * heads * tokens**2 * dim
    return {
        "forward_ms": forward,
        "both_ms": both,
        "forward_tflops": flop / forward / 1e9,
        "both_tflops": 3.5 * flop / both / 1e9,
        "error": max(
            float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(found, wide)
        ),
    }


def attended(qkv: list[Tensor], grad: Tensor, kernel: SDPBackend | None) -> list[Tensor]:
    """Output and gradients."""
    inputs = [t.detach().requires_grad_() for t in qkv]
    with chosen(kernel):
        out = scaled_dot_product_attention(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def chosen(kernel: SDPBackend | None) -> AbstractContextManager[Any]:
    return nullcontext() if kernel is None else sdpa_kernel(kernel)


def picture_tokens(model: Model) -> int:
    _, height, width = model.adapter.latent_shape
    return height * width // model.adapter.transformer.config.patch_size**2


# -- products --------------------------------------------------------------------------------------


@torch.no_grad()
def products(bench: Bench, model: Model) -> None:
    config = model.adapter.transformer.config
    width = config.num_attention_heads * config.attention_head_dim
    tokens = model.sizes[1] * picture_tokens(model)
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(bench.device, torch.bfloat16)

    x, wide, joined = random(tokens, width), random(tokens, 4 * width), random(tokens, 3 * width)
    parts = [part.contiguous() for part in joined.chunk(3, dim=1)]
    qkv, bias = random(3 * width, width), random(4 * width)
    each = qkv.chunk(3)
    first, second = random(4 * width, width), random(width, 4 * width)
    calls: dict[str, tuple[int, Callable[[], Any]]] = {
        "q, k, v one by one": (3, lambda: [linear(x, w, bias[:width]) for w in each]),
        "q, k, v at once": (3, lambda: linear(x, qkv, bias[: 3 * width])),
        "their input's gradient, one by one": (
            3,
            lambda: sum((part @ w).float() for part, w in zip(parts, each)),
        ),
        "their input's gradient, at once": (3, lambda: joined @ qkv),
        "feed-forward, first": (4, lambda: linear(x, first, bias)),
        "feed-forward, first, then GELU": (
            4,
            lambda: gelu(linear(x, first, bias), approximate="tanh"),
        ),
        "feed-forward, first, GELU within": (
            4,
            lambda: torch._addmm_activation(bias, x, first.t(), use_gelu=True),
        ),
        "feed-forward, second": (4, lambda: linear(wide, second, bias[:width])),
    }
    for name, (squares, call) in calls.items():
        flop = 2 * tokens * squares * width**2
        bench.take(f"products, {name}", partial(one_product, bench, flop, call))


def one_product(bench: Bench, flop: int, call: Callable[[], Any]) -> dict[str, float]:
    ms = bench.ms(call)
    return {"ms": ms, "tflops": flop / ms / 1e9}


# -- decoding --------------------------------------------------------------------------------------


def decode(bench: Bench, model: Model) -> None:
    adapter = model.adapter
    count = 2 if bench.args.tiny else DRAWN
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn((count, *adapter.latent_shape), generator=generator).to(bench.device)
    scaled_vae(adapter, latents)
    latents = adapter._for_vae(latents)
    vae = adapter.pipeline.vae
    wanted = pictures(lambda z: vae.decode(z, return_dict=False)[0], latents[:4])
    bench.take(
        "decode, fp32",
        lambda: {"ms": bench.ms(lambda: vae_in_nines(vae, latents))},
    )
    for layout in (torch.contiguous_format, torch.channels_last):
        low = halved(vae).to(memory_format=layout)
        compiled = torch.compile(low.decoder, backend=bench.args.backend)
        for name, decoder in (("as it is", low.decoder), ("compiled", compiled)):

            def measure(decoder: Callable[[Tensor], Tensor] = decoder) -> dict[str, float]:
                run = lambda z: decoder(z.half().to(memory_format=layout))  # noqa: E731, B023
                apart = (pictures(run, latents[:4]) - wanted).abs()
                same = float((apart <= 1).double().mean())
                return {"ms": bench.ms(lambda: pictures(run, latents)), "within_one_level": same}

            bench.take(f"decode, fp16, {str(layout).removeprefix('torch.')}, {name}", measure)


@torch.no_grad()
def pictures(decode: Callable[[Tensor], Tensor], latents: Tensor) -> Tensor:
    return levels(decode(latents).float())


@torch.no_grad()
def vae_in_nines(vae: Any, latents: Tensor) -> None:
    for part in latents.split(9):
        levels(vae.decode(part, return_dict=False)[0])


# -- a step ----------------------------------------------------------------------------------------


def step(bench: Bench, model: Model) -> None:
    said: list[str] = []
    bench.result["said"] = said
    model.adapter.say = said.append
    model.adapter.compile_blocks(bench.args.backend)
    count = model.sizes[1]

    held: list[Tensor] = []

    def old() -> None:
        with model.adapter.using(lora.OLD):
            model.draw(count)

    def forward() -> None:
        held[:] = [model.forward(count)]

    def backward() -> None:
        held.pop().backward(model.inputs[count][2])

    bench.take("v_old", lambda: profiled(bench, old))
    bench.take("v_θ", lambda: profiled(bench, forward))
    bench.take("backward", lambda: profiled(bench, backward, forward))
    model.clear()
    with model.merged():
        bench.take("forward pass of a rollout", lambda: profiled(bench, lambda: model.draw(count)))


def profiled(
    bench: Bench, call: Callable[[], None], before: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Milliseconds of the whole, by kind of kernel, and of the longest ones; `before` prepares."""
    for _ in range(2):  # compiled, then as it will be
        before()
        call()
    before()
    whole, queued = timed(call, bench.device)
    before()
    times = device_times(call, bench.device)
    kinds: dict[str, float] = defaultdict(float)
    for name, (ms, _) in times.items():
        kinds[kind_of(name)] += ms
    longest = sorted(times.items(), key=lambda item: -item[1][0])[:60]
    return {
        "ms": whole,
        "host_ms": queued,
        "device_ms": sum(ms for ms, _ in times.values()),
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
        "longest": [[name[:120], round(ms, 3), count] for name, (ms, count) in longest],
    }


def kind_of(kernel: str) -> str:
    for kind, pattern in KINDS.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return kind
    return "rest"


if __name__ == "__main__":
    main()
