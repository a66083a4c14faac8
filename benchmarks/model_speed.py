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
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import Tensor

from marble.models import lora
from marble.models.compiling import Compiled
from model_speed_decoding import vae
from model_speed_setup import Bench, Model
from model_speed_studio import studio

PARTS = ("eager", "vae", "studio", "sampling", "training", "refresh", "vae_compiled")


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
    model.adapter.say = said.append
    return model.adapter.compile_blocks(bench.args.backend)


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


if __name__ == "__main__":
    main()
