"""The model's part of a step, before and after: LoRA layer, merging, compiling, decoding.

    python benchmarks/model_speed.py --out FILE.json               # on a GPU, in under 150 s
    python benchmarks/model_speed.py --out FILE.json --only studio,vae
    python benchmarks/model_speed.py --out FILE.json --tiny        # the same code on a CPU

SD3.5 Medium's transformer and decoder with random weights in bf16 at 512 pixels, nothing
downloaded; the studio as it ships. FILE is written anew after every measurement: a failure is
written in its place, and what --seconds leave no time for is missing. Milliseconds are medians.
`peft` is peft's own LoRA layer, `lean` ours.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import diffusers
import peft
import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn

from full_size_models import build_adapter, random_text
from marble.jacobian import Jacobian
from marble.models import lora
from marble.models.compiling import Compiled
from marble.models.lora_layer import Factor, LeanLinear
from marble.models.merge import merged
from marble.models.pipeline import PipelineAdapter, blocks
from marble.models.quiet import quiet
from marble.recipe import load_recipe
from measure import timed

K, TRAINED, DRAWN = 5, 9, 36
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
PARTS = ("eager", "vae", "studio", "sampling", "training", "refresh", "vae_compiled")


class Bench:
    """Results, written as they come, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, torch.device(args.device)
        self.end = time.monotonic() + args.seconds
        self.result: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": _device(self.device),
            "versions": {m.__name__: m.__version__ for m in (torch, diffusers, peft)},
            "python": platform.python_version(),
            "setup": {"model": "SD3.5 Medium, random weights, bf16", "tiny": args.tiny},
        }

    def take(self, name: str, measure: Callable[[], Any]) -> None:
        """Stores what `measure` returns, or why it failed, or that there was no time."""
        began = time.monotonic()
        if began > self.end:
            self.result[name] = "no time left"
        else:
            try:
                self.result[name] = measure()
            except Exception as error:  # one measurement less
                text = (str(error).strip().splitlines() or [""])[0]
                self.result[name] = {"failed": f"{type(error).__name__}: {text}"[:500]}
                self.result.setdefault("tracebacks", {})[name] = traceback.format_exc()[-3000:]
            self.result.setdefault("seconds", {})[name] = round(time.monotonic() - began, 1)
        self.args.out.write_text(json.dumps(self.result, indent=1) + "\n")
        shown = json.dumps(self.result[name])
        print(
            f"{time.monotonic() - self.end + self.args.seconds:6.1f} s  {name}: {shown}", flush=True
        )

    def ms(self, step: Callable[[], Any], warmup: int = 2) -> float:
        for _ in range(warmup):
            timed(step, self.device)
        return statistics.median(timed(step, self.device)[0] for _ in range(self.args.repeats))


class Model:
    """SD3.5 Medium, a micro-batch, and the passes on it."""

    def __init__(self, bench: Bench) -> None:
        args, self.device = bench.args, bench.device
        self.sizes = (2, 3) if args.tiny else (TRAINED, DRAWN)
        recipe = load_recipe("sd35m-5rewards", ["model.resolution=32"] if args.tiny else [])
        self.adapter = build_adapter(recipe, self.device, tiny=args.tiny)
        self.adapter.add_lora(32, 64)
        generator = torch.Generator().manual_seed(1)
        for name in (lora.TRAINED, lora.OLD):
            for parameter in self.adapter.lora_parameters(name).values():
                parameter.data.add_(
                    0.01 * torch.randn(parameter.shape, generator=generator).to(parameter)
                )
        self.parameters = list(self.adapter.lora_parameters().values())
        self.jacobian = Jacobian(self.adapter.transformer, K)
        self.inputs = {n: self._inputs(n) for n in self.sizes}

    def _inputs(self, count: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(2)
        shape = (count, *self.adapter.latent_shape)
        x, plus, minus = (torch.randn(shape, generator=generator) for _ in range(3))
        sigma = torch.linspace(0.1, 0.9, count)
        tensors = [t.to(self.device) for t in (x, sigma, plus, minus)]
        return (*tensors, random_text(self.adapter, count).to(self.device))

    @torch.no_grad()
    def draw(self, count: int) -> Tensor:
        x, sigma, _, _, text = self.inputs[count]
        return self.adapter.velocity(x, sigma, text)

    def train(self, count: int, parts: int = 1) -> None:
        """Forward and backward of a micro-batch, in so many parts."""
        x, sigma, plus, _, text = self.inputs[count]
        for rows in torch.arange(count).chunk(parts):
            index = rows.tolist()
            v = self.adapter.velocity(x[index], sigma[index], text[index])
            v.backward(plus[index])

    def refresh(self, count: int) -> None:
        x, sigma, plus, minus, text = self.inputs[count]
        with self.jacobian.recording(count):
            v = self.adapter.velocity(x, sigma, text)
        weights = torch.full((K, count), 1 / count, device=self.device)
        self.jacobian.backward(v, [(plus, weights), (minus, weights)])

    def gradient(self, step: Callable[[], None]) -> Tensor:
        self.clear()
        step()
        found = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        self.clear()
        return found

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def merged(self) -> AbstractContextManager[None]:
        return merged(self.adapter.transformer, lora.OLD)

    @contextmanager
    def peft(self) -> Iterator[None]:
        """With peft's own forward pass."""
        layers = [layer for _, layer in lora.lora_layers(self.adapter.transformer)]
        factors = [f for x in layers for d in (x.lora_A, x.lora_B) for f in d.values()]
        for one in layers:
            one.__class__ = Linear
        for one in factors:
            one.__class__ = nn.Linear
        try:
            yield
        finally:
            for one in layers:
                one.__class__ = LeanLinear
            for one in factors:
                one.__class__ = Factor


def eager(bench: Bench, model: Model) -> None:
    train = model.sizes[0]

    def draw(name: str, count: int) -> None:
        bench.take(f"draw {count}, eager, {name}", lambda: bench.ms(lambda: model.draw(count)))

    for count in model.sizes:
        with model.adapter.using(lora.OLD):
            with model.peft():
                draw("peft", count)
            draw("lean", count)
        with model.merged():
            draw("merged", count)
    with model.peft():
        bench.take("train, eager, peft", lambda: bench.ms(lambda: model.train(train)))
        bench.take("refresh, eager, peft", lambda: bench.ms(lambda: model.refresh(train)))
    bench.take("train, eager, lean", lambda: bench.ms(lambda: model.train(train)))
    bench.take("refresh, eager, lean", lambda: bench.ms(lambda: model.refresh(train)))
    bench.take("merging", lambda: bench.ms(lambda: _enter(model)))
    bench.take("errors, eager", lambda: errors(model, train))


def _enter(model: Model) -> None:
    with model.merged():
        pass


def errors(model: Model, count: int) -> dict[str, float]:
    """Relative differences from peft's own path, all in bf16, and between two splits of that."""
    with model.peft():
        base = model.gradient(lambda: model.train(count))
        split = model.gradient(lambda: model.train(count, 2))
        with model.adapter.using(lora.OLD):
            v = model.draw(count)
    found = model.gradient(lambda: model.train(count))
    with model.merged():
        inside = model.draw(count)
    return {
        "gradient, two splits of peft": relative(split, base),
        "gradient, ours against peft": relative(found, base),
        "velocity, merged against peft": relative(inside, v),
    }


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def compile_model(bench: Bench, model: Model) -> Compiled:
    said: list[str] = []
    bench.result["said"] = said
    return Compiled(blocks(model.adapter.transformer), said.append, backend=bench.args.backend)


def compiled_part(
    bench: Bench, compiled: Compiled, name: str, step: Callable[[], Any], inside: Any = None
) -> None:
    def measure() -> dict[str, Any]:
        began, graphs = time.monotonic(), compiled.counts["compile/graphs"]
        with inside() if inside else nullcontext():
            step()
            first = time.monotonic() - began
            ms = bench.ms(step)
        made = compiled.counts["compile/graphs"] - graphs
        return {"ms": ms, "first_s": round(first, 1), "graphs": made, **compiled.counts}

    bench.take(name, measure)


# ---- decoding ---------------------------------------------------------------------------------


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


# ---- the studio -------------------------------------------------------------------------------


def studio(bench: Bench) -> None:
    """A step of 576 pictures without its rewards: drawn, decoded, trained on."""
    from marble.models.build import build_adapter as build_studio

    recipe = load_recipe("studio", ["model.compile=auto"])
    adapter = build_studio(recipe, bench.device)
    adapter.add_lora(32, 64)
    pictures = 4 if bench.args.tiny else 576
    size = 2 if bench.args.tiny else recipe.rollout.batch_size
    steps = 2 if bench.args.tiny else recipe.rollout.steps
    cond = adapter.encode([f"a red circle {i % 10}" for i in range(pictures)])
    seeds, drawn = list(range(pictures)), {}

    def sample() -> None:
        drawn["x"] = adapter.sample(cond, seeds, steps=steps, batch_size=size)

    def graphed() -> None:
        with adapter.drawing(lora.OLD):
            sample()

    def unmerged() -> None:
        with adapter.using(lora.OLD):
            sample()

    def train(size: int = size) -> None:
        for _ in range(max(1, round(recipe.train.timesteps_fraction * steps))):
            for start in range(0, pictures, size):
                x = drawn["x"][start : start + size]
                rows = cond[start : start + size].to(bench.device)
                sigma = torch.full((len(x),), 0.5, device=bench.device)
                with torch.no_grad(), adapter.using(lora.OLD):
                    adapter.velocity(x, sigma, rows)
                v = adapter.velocity(x, sigma, rows)
                v.backward(torch.ones_like(v))

    bench.take("studio, draw 576, before", lambda: bench.ms(unmerged, 1))
    bench.take("studio, draw 576, after", lambda: bench.ms(graphed, 1))
    for larger in (2, 6):

        def wide(count: int = larger * size) -> None:
            with adapter.drawing(lora.OLD):
                adapter.sample(cond, seeds, steps=steps, batch_size=count)

        bench.take(f"studio, draw 576, {larger * size} at once", lambda w=wide: bench.ms(w, 1))
    bench.take("studio, decode 576", lambda: bench.ms(lambda: adapter.decode(drawn["x"]), 1))
    bench.take("studio, train 576", lambda: bench.ms(train, 1))
    bench.take(
        f"studio, train 576, {6 * size} at once", lambda: bench.ms(lambda: train(6 * size), 1)
    )
    real = drawn["x"][:64]
    wanted = adapter.decode(real).float()
    part = adapter.pipeline.vae
    for name, dtype in LOW.items():
        with in_format(part, dtype):

            def low(z: Tensor, dtype: torch.dtype = dtype) -> Tensor:
                return part.decode(z.to(dtype), return_dict=False)[0]

            pictures = levels(adapter, low, real).cpu()
        bench.take(f"studio, {name} decoding", lambda p=pictures: difference(p, wanted))


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=140, help="nothing begins after these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", default=None, help="of torch.compile")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(words)
    args.repeats = 1 if args.tiny else args.repeats
    args.backend = args.backend or ("eager" if args.tiny else "inductor")
    parts = args.only.split(",")
    bench = Bench(args)
    model: Model | None = None
    if set(parts) - {"studio"}:
        model = Model(bench)
    if model is not None and "eager" in parts:
        eager(bench, model)
    if model is not None and "vae" in parts:
        vae(bench, model.adapter)
    if "studio" in parts:
        studio(bench)
    if model is not None and {"sampling", "training", "refresh"} & set(parts):
        compiled_parts(bench, model, parts)
    if model is not None and "vae_compiled" in parts:
        vae(bench, model.adapter, compiled=True)
    if bench.device.type == "cuda":
        bench.take("peak_memory_gb", lambda: torch.cuda.max_memory_allocated() / 1e9)
    return bench.result


def compiled_parts(bench: Bench, model: Model, parts: list[str]) -> None:
    train, draw = model.sizes
    reference = model.gradient(lambda: model.train(train))
    compiled = compile_model(bench, model)
    if "sampling" in parts:
        name = f"draw {draw}, compiled, merged"
        compiled_part(bench, compiled, name, lambda: model.draw(draw), model.merged)
    if "training" in parts:
        compiled_part(bench, compiled, "train, compiled", lambda: model.train(train))
        bench.take(
            "gradient, compiled against eager",
            lambda: relative(model.gradient(lambda: model.train(train)), reference),
        )
    if "refresh" in parts:
        compiled_part(bench, compiled, "refresh, compiled", lambda: model.refresh(train))
    if "sampling" in parts:
        name = f"draw {train}, compiled, merged"
        compiled_part(bench, compiled, name, lambda: model.draw(train), model.merged)


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


if __name__ == "__main__":
    main()
