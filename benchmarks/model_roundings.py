"""Where the fast path's velocities and gradients part from the slow path's, in bf16.

    python benchmarks/model_roundings.py --out FILE.json                 # on a GPU, in about 150 s
    python benchmarks/model_roundings.py --out FILE.json --tiny          # the same code on a CPU

SD3.5 Medium's transformer with random weights and a random LoRA, 36 pictures. The slow path is
peft's layers in diffusers' blocks, uncompiled, nine pictures at once. From there one thing is
changed at a time: larger batches, our LoRA layer, then blocks compiled as the trainer compiles
them, in small and large batches, with diffusers' attention, its GELU, and torch's own reductions.

equal: the share of velocities that are the same number; velocity, gradient: relative differences
from the slow path's. The gradient is that of <v, u>, u random, in the LoRA's factors.

Nothing is downloaded. FILE is written anew after every measurement: a failure (no memory for a
batch, say) is written in its place, and what --seconds leave no time for is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from diffusers.models.activations import GELU
from diffusers.models.attention_processor import JointAttnProcessor2_0
from torch import Tensor, nn

from marble.models.gelu import SigmoidGELU
from model_speed import relative
from model_speed_setup import TRAINED, Bench, Model


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150, help="nothing begins after these")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(words)
    bench = Bench(args)
    model = Model(bench)
    count = model.sizes[1]
    small = 1 if args.tiny else TRAINED
    base: list[Tensor] = []

    def compare(name: str, size: int, *changes: Callable[[nn.Module], Any]) -> None:
        def measure() -> dict[str, float]:
            with ExitStack() as stack:
                for change in changes:
                    stack.enter_context(change(model.adapter.transformer))
                v, gradient = passes(model, count, size)
            if not base:
                base[:] = v, gradient
            return {
                "equal": float((v == base[0]).double().mean()),
                "velocity": relative(v, base[0]),
                "gradient": relative(gradient, base[1]),
            }

        bench.take(name, measure)

    peft = lambda _: model.peft()  # noqa: E731
    compare("slow", small, peft)
    for size in sorted({2 * small, count}):
        compare(f"slow, {size} at once", size, peft)
    compare("our LoRA layer", small)
    model.adapter.compile_blocks("eager" if args.tiny else "inductor")
    compare(f"compiled, {count} at once", count)
    compare(f"compiled, {small} at once", small)
    compare(f"compiled, {count} at once, diffusers' attention", count, diffusers_attention)
    compare(f"compiled, {count} at once, its GELU", count, tanh)
    compare(f"compiled, {count} at once, torch's reductions", count, plain_reductions)
    return bench.result


def passes(model: Model, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Velocities without gradients, and the gradient, so many pictures at once."""
    x, sigma, _, _, text = model.inputs[count]
    rows = [index.tolist() for index in torch.arange(count).split(size)]
    with torch.no_grad():
        v = torch.cat([model.adapter.velocity(x[i], sigma[i], text[i]) for i in rows])
    return v, model.gradient(lambda: model.train(count, len(rows)))


@contextmanager
def diffusers_attention(model: nn.Module) -> Iterator[None]:
    ours = {m: m.processor for m in model.modules() if getattr(m, "processor", None) is not None}
    assert ours
    for module in ours:
        module.processor = JointAttnProcessor2_0()
    try:
        yield
    finally:
        for module, processor in ours.items():
            module.processor = processor


@contextmanager
def tanh(model: nn.Module) -> Iterator[None]:
    ours = [m for m in model.modules() if type(m) is SigmoidGELU]
    assert ours
    for module in ours:
        module.__class__ = GELU
    try:
        yield
    finally:
        for module in ours:
            module.__class__ = SigmoidGELU


@contextmanager
def plain_reductions(_: nn.Module) -> Iterator[None]:
    """Programs are made anew, with torch's own choice of how rows are read."""
    from torch._inductor import config

    torch._dynamo.reset()
    with config.patch(inductor_choices_class=partial(_torch_s_choices)):
        yield
    torch._dynamo.reset()


def _torch_s_choices() -> Any:
    from torch._inductor.choices import InductorChoices

    return InductorChoices()


if __name__ == "__main__":
    main()
