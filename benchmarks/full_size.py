"""Rollout, ordinary and refresh steps of large models at true size, with random weights.

    python benchmarks/full_size.py --out FOLDER                    # all, one process each
    python benchmarks/full_size.py qwen-image --out FOLDER         # one
    python benchmarks/full_size.py --tiny --device cpu --out FOLDER   # the same code, in seconds

Nothing is downloaded and nothing written but the results: the transformer is built on the meta
device and filled on the GPU in bf16, text embeddings are random tensors of the true shape. Batches,
resolution and checkpointing are those of the model's shipped recipe. FOLDER/MODEL.json is written
anew after every measurement, so that a run that is cut short leaves what it has.

A step is one micro-batch: forwards of v_old, v_ref and v_θ, then backward: one weighted backward in
an *ordinary* step, all K gradients in two passes in a *refresh* step. LoRA, its old copy, weight
EMA and AdamW's moments are allocated as in a run; rewards and text encoders are not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import diffusers
import peft
import torch
from torch import Tensor

from full_size_models import MODELS, build_adapter, random_text
from marble.jacobian import Jacobian
from marble.memory import estimate
from marble.recipe import Recipe, load_recipe
from measure import interleaved, peak_bytes, timed

K = 5


class Bench:
    """A model of true size, its optimiser, one micro-batch, and the steps on it."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe) -> None:
        self.device = torch.device(args.device)
        self.recipe = recipe
        self.adapter = build_adapter(recipe, self.device, tiny=args.tiny)
        self.adapter.add_lora(recipe.model.lora.rank, recipe.model.lora.alpha)
        generator = torch.Generator().manual_seed(1)
        self.parameters = list(self.adapter.lora_parameters().values())
        for parameter in self.parameters:  # away from the start, where half the gradients are zero
            parameter.data.add_(
                0.01 * torch.randn(parameter.shape, generator=generator).to(parameter)
            )
        self.ema = self.adapter.lora_state()
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-5)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.clear()
        n = recipe.train.batch_size
        self.text = random_text(self.adapter, n).to(self.device)
        shape = (n, *self.adapter.latent_shape)
        self.x, self.plus, self.minus = (
            torch.randn(shape, generator=generator).to(self.device) for _ in range(3)
        )
        self.sigma = torch.linspace(0.1, 0.9, n).to(self.device)
        r = torch.rand(K, n, generator=generator)
        self.r, self.weight = r.to(self.device), torch.full((K, n), 1 / n).to(self.device)

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def frozen(self) -> None:
        with torch.no_grad():
            for policy in ("old", "base"):
                with self.adapter.using(policy):
                    self.adapter.velocity(self.x, self.sigma, self.text)

    def ordinary(self) -> None:
        self.frozen()
        v = self.adapter.velocity(self.x, self.sigma, self.text)
        c = self.weight.mean(0), self.r.mean(0)  # coefficients 1/K
        shape = (-1, *[1] * (v.dim() - 1))
        plus, minus = (c[0] * c[1]).view(shape), (c[0] * (1 - c[1])).view(shape)
        v.backward(plus * self.plus + minus * self.minus)

    def refresh(self, jac: Jacobian) -> None:
        self.frozen()
        with jac.recording():
            v = self.adapter.velocity(self.x, self.sigma, self.text)
        shares = self.weight * self.r, self.weight * (1 - self.r)
        jac.backward(v, [(self.plus, shares[0]), (self.minus, shares[1])])

    def refreshing(self) -> Callable[[], None]:
        """Refresh steps, with the accumulators they add into."""
        jac = Jacobian(self.adapter.transformer, K)
        return lambda: self.refresh(jac)

    def gradient_error(self) -> float:
        """The K gradients, averaged, against the ordinary step's: relative, both in bf16."""
        jac = Jacobian(self.adapter.transformer, K)
        self.refresh(jac)
        ours = jac.combine(torch.full((K,), 1 / K))
        self.ordinary()
        found = {p: p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters}
        theirs = jac.flatten(found)
        self.clear()
        return float((ours - theirs).norm() / theirs.norm())


def measure(bench: Bench, args: argparse.Namespace, known: Callable[..., None]) -> None:
    """Runs every measurement; `known` stores each as soon as it is there."""
    measure_rollout(bench, args, known)
    measure_steps(bench, args, known, "step")
    known(gradient_error=bench.gradient_error())
    if bench.recipe.model.gradient_checkpointing:
        bench.adapter.transformer.disable_gradient_checkpointing()
        try:
            measure_steps(bench, args, known, "step without checkpointing")
        except torch.OutOfMemoryError as error:
            known(**{"step without checkpointing": f"out of memory: {error}"})


def measure_rollout(bench: Bench, args: argparse.Namespace, known: Callable[..., None]) -> None:
    """A few sampling steps, from which a whole rollout follows; and decoding."""
    adapter, rollout, device = bench.adapter, bench.recipe.rollout, bench.device
    size, text = rollout.batch_size, random_text(adapter, rollout.batch_size)
    steps = min(args.steps, rollout.steps)
    drawn: dict[str, Tensor] = {}

    def sample() -> None:
        with adapter.using("old"):
            drawn["x_0"] = adapter.sample(
                text, list(range(size)), steps=steps, sampler=rollout.sampler
            )

    def decode() -> None:
        adapter.decode(drawn["x_0"])

    timed(sample, device)  # kernels are chosen on the first call
    ms = min(timed(sample, device)[0] for _ in range(args.repeats)) / steps
    found = {"pictures": size, "ms_per_sampling_step": ms, "sampling_steps_timed": steps}
    found["ms_per_picture"] = ms * rollout.steps / size
    known(rollout={"sample latents": found})
    known(peak_memory_bytes={"sample latents": peak_bytes(lambda: sample, device, bench.clear)})
    timed(decode, device)
    ms = min(timed(decode, device)[0] for _ in range(args.repeats))
    known(rollout={"decode pictures": {"pictures": size, "ms_per_picture": ms / size}})
    known(peak_memory_bytes={"decode pictures": peak_bytes(lambda: decode, device, bench.clear)})


def measure_steps(
    bench: Bench, args: argparse.Namespace, known: Callable[..., None], name: str
) -> None:
    steps = {"ordinary": bench.ordinary, "refresh": bench.refreshing()}
    times: dict[str, Any] = interleaved(steps, args.repeats, bench.device, bench.clear)
    ratio = times["refresh"]["ms"] / times["ordinary"]["ms"]
    known(**{name: times | {"refresh / ordinary": ratio}})
    steps.clear()
    peaks = {
        f"{name}, ordinary": peak_bytes(lambda: bench.ordinary, bench.device, bench.clear),
        f"{name}, refresh": peak_bytes(bench.refreshing, bench.device, bench.clear),
    }
    known(peak_memory_bytes=peaks)


def run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One model; its result is in the folder after every measurement."""
    started = time.perf_counter()
    recipe = load_recipe(MODELS[name].recipe, _overrides(args))
    need = estimate(recipe) if not args.tiny else None
    result: dict[str, Any] = {
        "what": f"{name}, random weights at {'tiny' if args.tiny else 'true'} size",
        "complete": False,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
            "peft": peft.__version__,
        },
        "setup": {
            "recipe": MODELS[name].recipe,
            "model": recipe.model.model_dump(mode="json"),
            "train_batch": recipe.train.batch_size,
            "rollout_batch": recipe.rollout.batch_size,
            "sampling_steps": recipe.rollout.steps,
            "K": K,
            "repeats": args.repeats,
        },
        "estimate_gb": need and {"held": need.held, "phases": need.phases},
        "peak_memory_bytes": {},
        "rollout": {},
    }

    def known(**found: Any) -> None:
        for key, value in found.items():
            if isinstance(value, dict) and isinstance(result.get(key), dict):
                result[key] |= value
            else:
                result[key] = value
        result["seconds"] = time.perf_counter() - started
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        print(name, json.dumps(found), flush=True)

    try:
        bench = Bench(args, recipe)
        known(
            parameters=sum(p.numel() for p in bench.adapter.transformer.parameters()),
            lora_parameters=sum(p.numel() for p in bench.parameters),
            held_bytes=torch.cuda.memory_allocated() if bench.device.type == "cuda" else None,
        )
        measure(bench, args, known)
        known(complete=True)
    except Exception as error:  # what is known stays, with the reason
        known(failed=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
    return result


def _overrides(args: argparse.Namespace) -> list[str]:
    found = []
    if args.tiny:
        found += ["model.resolution=32", "train.batch_size=2", "rollout.batch_size=2"]
        found += ["rollout.steps=2", "model.lora.rank=4"]
    for key, value in (
        ("model.resolution", args.resolution),
        ("train.batch_size", args.batch),
    ):
        found += [] if value is None else [f"{key}={value}"]
    if args.no_checkpointing:
        found.append("model.gradient_checkpointing=false")
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--resolution", type=int, help="picture side; default: the recipe's")
    parser.add_argument("--batch", type=int, help="micro-batch; default: the recipe's")
    parser.add_argument("--steps", type=int, default=5, help="sampling steps that are timed")
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="tiny models: does the code run?")
    args = parser.parse_args(arguments)
    unknown = set(args.models) - set(MODELS)
    if unknown:
        parser.error(f"no model called {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    args.models = args.models or [name for name, model in MODELS.items() if model.default]
    return args


def main() -> None:
    args = parse()
    if len(args.models) == 1:
        result = run(args.models[0], args)
        sys.exit(0 if result["complete"] else 1)
    options = ["--out", str(args.out), "--device", args.device, "--repeats", str(args.repeats)]
    options += ["--steps", str(args.steps)]
    for flag, value in (("--resolution", args.resolution), ("--batch", args.batch)):
        options += [] if value is None else [flag, str(value)]
    options += ["--tiny"] if args.tiny else []
    options += ["--no-checkpointing"] if args.no_checkpointing else []
    failed = []
    for name in args.models:  # a process each: nothing of one model stays for the next
        if subprocess.run([sys.executable, __file__, name, *options]).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the reason is in the JSON")


if __name__ == "__main__":
    main()
