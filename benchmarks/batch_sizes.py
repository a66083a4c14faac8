"""What a picture costs SD3.5 Medium's passes, by how many are taken at once.

    python benchmarks/batch_sizes.py --out FILE.json                     # on a GPU, in about 150 s
    python benchmarks/batch_sizes.py --out FILE.json --sizes 24,32,36 --whole 32
    python benchmarks/batch_sizes.py --out FILE.json --tiny              # the same code on a CPU

A GPU computes a product in tiles, one per processor at a time. Where the last round of tiles fills
few of the processors, the others wait: 36 pictures' tokens make 13.09 rounds of the usual tiles on
an H200, 33 pictures' 12.00. How much of that the libraries avoid is what this measures.

products: a block's products with frozen weights, forwards and by the input, of the picture's tokens
    and of the prompt's; microseconds per picture.
attention: over both kinds of tokens, and over the picture's; microseconds per picture.
whole: with compiled blocks, a training micro-batch (v_old, v_θ, backward) and a forward pass of a
    rollout; milliseconds per picture. Every size compiles anew.

Random weights, nothing downloaded. FILE is written anew after every measurement: a failure is
written in its place, and what --seconds leave no time for is missing. Medians.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from marble.models import lora
from model_kernels import TEXT, attended, picture_tokens
from model_speed_setup import Bench, Model

SIZES, WHOLE = tuple(range(16, 49)), (36, 33, 32)
SHAPES = {"square": (1, 1), "first": (4, 1), "second": (1, 4)}
"""Outputs and inputs in units of the model's width: attention's layers, the feed-forward ones."""


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", type=numbers, help="for products and attention; default: 16-48")
    parser.add_argument("--whole", type=numbers, help="for whole passes; default: 36,33,32")
    parser.add_argument("--seconds", type=float, default=170, help="nothing begins after these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(words)
    if args.tiny:
        args.repeats = 1
    bench = Bench(args)
    model = Model(bench)
    sizes = args.sizes or ((2, 3) if args.tiny else SIZES)
    bench.take("products", partial(products, bench, model, sizes))
    bench.take("attention", partial(attention, bench, model, sizes))
    model.adapter.compile_blocks("eager" if args.tiny else "inductor")
    for size in args.whole or ((2, 3) if args.tiny else WHOLE):
        bench.take(f"whole, {size}", partial(whole, bench, model, size))
    return bench.result


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def tokens_of(bench: Bench, model: Model) -> dict[str, int]:
    return {"picture": picture_tokens(model), "text": 5 if bench.args.tiny else TEXT}


@torch.no_grad()
def products(bench: Bench, model: Model, sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    config = model.adapter.transformer.config
    width = config.num_attention_heads * config.attention_head_dim
    found: dict[str, dict[str, float]] = {}
    for kind, tokens in tokens_of(bench, model).items():
        rows = max(sizes) * tokens
        for name, (out, into) in SHAPES.items():
            weight = random(bench, out * width, into * width)
            x, y = random(bench, rows, into * width), random(bench, rows, out * width)
            for size in sizes:
                part = slice(0, size * tokens)
                one = found.setdefault(str(size), {})
                forward = bench.ms(lambda: linear(x[part], weight))  # noqa: B023
                back = bench.ms(lambda: y[part] @ weight)  # noqa: B023
                one[f"{kind}, {name}"] = 1e3 * forward / size
                one[f"{kind}, {name}, backward"] = 1e3 * back / size
    return found


def attention(bench: Bench, model: Model, sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    config = model.adapter.transformer.config
    tokens, found = tokens_of(bench, model), dict[str, dict[str, float]]()
    for name, count in (("both", sum(tokens.values())), ("picture", tokens["picture"])):
        shape = (max(sizes), config.num_attention_heads, count, config.attention_head_dim)
        *qkv, grad = (random(bench, *shape) for _ in range(4))
        for size in sizes:
            few = [part[:size] for part in qkv]
            one = found.setdefault(str(size), {})
            with torch.no_grad():
                forward = bench.ms(lambda: scaled_dot_product_attention(*few))  # noqa: B023
            both = bench.ms(lambda: attended(few, grad[:size], None))  # noqa: B023
            one[name] = 1e3 * forward / size
            one[f"{name}, and backward"] = 1e3 * both / size
    return found


def whole(bench: Bench, model: Model, size: int) -> dict[str, float]:
    if size not in model.inputs:
        model.inputs[size] = model._inputs(size)

    def step() -> None:
        with model.adapter.using(lora.OLD):
            model.draw(size)
        model.train(size)

    found = {"training": bench.ms(step) / size}
    model.clear()
    with model.merged():
        found["rollout"] = bench.ms(lambda: model.draw(size)) / size
    return found


def random(bench: Bench, *shape: int) -> Tensor:
    return torch.randn(shape, device=bench.device, dtype=torch.bfloat16)


if __name__ == "__main__":
    main()
