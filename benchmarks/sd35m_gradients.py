"""What K per-reward gradients cost at SD3.5 Medium's size: whole training steps, measured.

    PYTHONPATH=src python benchmarks/sd35m_gradients.py --out benchmarks/results/NAME.json

One step = one micro-batch of batch 9 at 512 px: forwards of v_old, v_ref and v_θ, then backward.
The *ordinary* step takes one weighted backward, the *refresh* step all K gradients in two passes
(`marble.jacobian`), the *retained* step K separate backwards over one graph, as published.
The KL's value is taken in every micro-batch (hence v_ref), its gradient in every m-th one with
weight m, in ordinary and refresh steps alike. In an ordinary step it costs nothing. In a refresh
step it is a third pass in those micro-batches; or they come last and take one weighted backward
with the fresh coefficients, KL included, and do not enter the Gram (a probe of 1 − 1/m).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import diffusers
import peft
import torch
from torch import Tensor

from marble.jacobian import Jacobian
from marble.objectives import NFT, Point, mix, terms
from measure import Step, interleaved, peak_bytes, profile
from sd35m import build, micro_batch, use

KL_WEIGHT = 1e-4


class Bench:
    """The model, a micro-batch, and the steps that are compared on them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device = torch.device(args.device)
        self.kl_every = args.kl_every
        self.model = build(self.device, tiny=args.tiny, input_casts=not args.no_input_casts)
        if args.checkpointing:
            self.model.train()
            self.model.enable_gradient_checkpointing()
        else:
            self.model.eval()
        latent, tokens = (16, 7) if args.tiny else (64, 205)
        self.batch = micro_batch(self.model, args.batch, latent, tokens)
        self.nft = NFT()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.parameters)

    def rewards(self, k: int) -> tuple[Tensor, Tensor]:
        """(r, m/n): random advantages, some beyond the clamp, a tenth of them inapplicable."""
        g = torch.Generator().manual_seed(k)
        n = len(self.batch.t)
        r = (0.5 + torch.randn(k, n, generator=g) / 5).clamp(0, 1)
        valid = torch.rand(k, n, generator=g) < 0.9
        valid[:, 0] = True
        weight = valid.double() / valid.sum(1, keepdim=True)
        return r.to(self.device), weight.to(self.device)

    def forward(self) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            return self.model(**self.batch.inputs())[0]

    def frozen(self) -> tuple[Tensor, Tensor]:
        """v_old and v_ref."""
        with torch.no_grad():
            use(self.model, "old")
            old = self.forward()
            use(self.model, "base")
            ref = self.forward()
        use(self.model, "default")
        return old, ref

    def point(self, old: Tensor) -> Point:
        b = self.batch
        return Point(b.x_t, b.t, b.x_0, v_old=old)

    def kl(self, v: Tensor, ref: Tensor) -> Tensor:
        return KL_WEIGHT * self.kl_every * (v.float() - ref.float()).square().mean()

    def ordinary(self, k: int, kl_gradient: bool) -> Step:
        r, weight = self.rewards(k)
        c = torch.full((k,), 1 / k, device=self.device)
        rho_plus, rho_minus = mix(c, r, 1 - r, weight > 0)

        def step() -> None:
            old, ref = self.frozen()
            v = self.forward()
            plus, minus = self.nft.sides(v, self.point(old))
            loss = (rho_plus * plus + rho_minus * minus).sum()
            kl = self.kl(v if kl_gradient else v.detach(), ref)
            (loss + kl).backward()

        return step

    def refresh(self, jac: Jacobian, kl_gradient: bool) -> Step:
        r, weight = self.rewards(jac.k)

        def step() -> None:
            old, ref = self.frozen()
            with jac.recording():
                v = self.forward()
            leaf = v.detach().requires_grad_(kl_gradient)
            kl = self.kl(leaf, ref)
            extra = torch.autograd.grad(kl, leaf)[0] if kl_gradient else None
            P, N = self.nft.cotangents(v, self.point(old))
            found, outside = terms(P, N, r, 1 - r, weight.to(jac.rows.data), extra=extra)
            jac.backward(v, found, outside=outside)

        return step

    def finish(self, jac: Jacobian) -> Step:
        """What a refresh adds once per optimiser step, however many micro-batches it has."""
        c = torch.full((jac.k,), 1 / jac.k)

        def step() -> None:
            jac.reduce()
            jac.gram()
            jac.write_grad(c)
            jac.zero()

        return step

    def retained(self, k: int) -> Callable[[], Tensor]:
        r, weight = self.rewards(k)

        def step() -> Tensor:
            old, ref = self.frozen()
            v = self.forward()
            plus, minus = self.nft.sides(v, self.point(old))
            self.kl(v.detach(), ref)
            rows = torch.empty(k, self.size, device=self.device)
            for i in range(k):
                loss = (weight[i] * (r[i] * plus + (1 - r[i]) * minus)).sum().float()
                grads = torch.autograd.grad(loss, self.parameters, retain_graph=i + 1 < k)
                torch.cat([g.flatten() for g in grads], out=rows[i])
            return rows

        return step

    def components(self) -> dict[str, Step]:
        def frozen_forward() -> None:
            with torch.no_grad():
                self.forward()

        def forward_backward() -> None:
            self.forward().float().sum().backward()

        return {"forward": frozen_forward, "forward+backward": forward_backward}

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def gram_error(bench: Bench, k: int) -> dict[str, float]:
    """Two passes against K separate backwards, both in bf16: Gram and cosines."""
    rows = bench.retained(k)().double()
    jac = Jacobian(bench.model, k)
    bench.refresh(jac, False)()
    ours, theirs = jac.gram(), (rows @ rows.T).cpu()
    return {
        "gram_relative": float((ours - theirs).norm() / theirs.norm()),
        "cosine_max": float((_cosines(ours) - _cosines(theirs)).abs().max()),
        "gradient_relative": float(
            ((jac.rows.data[0].double() - rows).norm(dim=1) / rows.norm(dim=1)).max()
        ),
    }


def _cosines(gram: Tensor) -> Tensor:
    norm = gram.diagonal().sqrt()
    return gram / norm[:, None] / norm


def run(args: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    bench = Bench(args)
    jacobians = {k: Jacobian(bench.model, k) for k in args.ks}
    small = min(args.ks)
    steps: dict[str, Step] = {
        "ordinary": bench.ordinary(small, kl_gradient=False),
        "ordinary, with KL gradient": bench.ordinary(small, kl_gradient=True),
    }
    for k, jac in jacobians.items():
        steps[f"refresh K={k}"] = bench.refresh(jac, kl_gradient=False)
        steps[f"refresh K={k}, with KL gradient"] = bench.refresh(jac, kl_gradient=True)
        steps[f"finish K={k}"] = bench.finish(jac)
    steps[f"retained K={small}"] = bench.retained(small)
    steps |= bench.components()
    times = interleaved(steps, args.repeats, bench.device, bench.clear)

    m = args.kl_every
    plain = ((m - 1) * times["ordinary"]["ms"] + times["ordinary, with KL gradient"]["ms"]) / m
    ratios: dict[str, Any] = {}
    for k in args.ks:
        two = times[f"refresh K={k}"]["ms"]
        three = times[f"refresh K={k}, with KL gradient"]["ms"]
        mean = ((m - 1) * two + three) / m
        probe = ((m - 1) * two + times["ordinary, with KL gradient"]["ms"]) / m
        ratios[f"K={k}"] = {
            "refresh / ordinary": mean / plain,
            "refresh / ordinary, KL only on weighted micro-batches": probe / plain,
            "refresh / ordinary, micro-batch without KL gradient": two / times["ordinary"]["ms"],
            "refresh / ordinary, micro-batch with KL gradient": three
            / times["ordinary, with KL gradient"]["ms"],
            "refresh / ordinary, one micro-batch a step (Gram and combination in full)": (
                mean + times[f"finish K={k}"]["ms"]
            )
            / plain,
        }
    ratios[f"retained K={small} / ordinary"] = times[f"retained K={small}"]["ms"] / plain

    if args.profile:
        profile(steps[f"refresh K={small}"], bench.device)
        bench.clear()
    # Free every accumulator before memory is measured, each variant alone.
    steps.clear()
    jacobians.clear()
    peak = partial(peak_bytes, device=bench.device, clear=bench.clear)
    memory: dict[str, Any] = {"ordinary": peak(lambda: bench.ordinary(small, True))}
    for k in args.ks:
        memory[f"refresh K={k}"] = peak(lambda k=k: bench.refresh(Jacobian(bench.model, k), False))
        memory[f"accumulators K={k}"] = 4 * k * bench.size
    memory[f"retained K={small}"] = peak(lambda: bench.retained(small))
    memory_ratios = {}
    for k in args.ks:
        if memory["ordinary"] is not None:
            over = memory[f"refresh K={k}"] - memory["ordinary"]
            memory_ratios[f"K={k}"] = {
                "refresh / ordinary": memory[f"refresh K={k}"] / memory["ordinary"],
                "(refresh - ordinary) / accumulators": over / memory[f"accumulators K={k}"],
            }
    return {
        "what": "SD3.5 Medium, random weights: cost of K per-reward gradients in a training step",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if bench.device.type == "cuda" else "CPU",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "diffusers": diffusers.__version__,
            "peft": peft.__version__,
        },
        "setup": {
            "tiny": args.tiny,
            "batch": args.batch,
            "gradient_checkpointing": args.checkpointing,
            "peft_input_casts": not args.no_input_casts,
            "precision": "bf16 base, fp32 LoRA r 32, bf16 autocast, fp32 accumulators",
            "lora_parameters": bench.size,
            "step": "one micro-batch: v_old, v_ref and v_theta forward, backward; no optimiser",
            "kl_gradient_every_nth_micro_batch": m,
            "repeats": args.repeats,
            "timing": "medians of interleaved, synchronised steps, in ms",
        },
        "times": times,
        "ratios": ratios,
        "peak_memory_bytes": memory,
        "memory_ratios": memory_ratios,
        f"error K={small} against separate bf16 backwards": gram_error(bench, small),
        "seconds": time.perf_counter() - started,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['device']}, torch {result['versions']['torch']}")
    for name, t in result["times"].items():
        print(f"{t['ms']:9.1f} ms (host {t['host_ms']:7.1f})  {name}")
    for name, value in result["ratios"].items():
        for label, ratio in value.items() if isinstance(value, dict) else [("", value)]:
            print(f"{ratio:9.3f}  {name} {label}")
    for name, value in result["peak_memory_bytes"].items():
        if value is not None:
            print(f"{value / 2**30:9.2f} GiB  {name}")
    for name, value in result["memory_ratios"].items():
        print(name, {label: round(ratio, 4) for label, ratio in value.items()})
    print({name: value for name, value in result.items() if name.startswith("error")})
    print(f"{result['seconds']:.0f} s in all")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=9)
    parser.add_argument("--ks", type=int, nargs="+", default=[5, 64])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--kl-every", type=int, default=32)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument(
        "--no-input-casts",
        action="store_true",
        help="keep peft from casting LoRA inputs to fp32 and back (same numbers under autocast)",
    )
    parser.add_argument("--profile", action="store_true", help="print the costliest operations")
    parser.add_argument("--tiny", action="store_true", help="a small model: a smoke test")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    with contextlib.suppress(AttributeError):
        diffusers.utils.logging.set_verbosity_error()
    result = run(args)
    show(result)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
