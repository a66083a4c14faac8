"""What `model_speed.py` measures with: results written as they come, and SD3.5 Medium's passes."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import diffusers
import peft
import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn

from full_size_models import build_adapter, random_text
from marble.jacobian import Jacobian
from marble.models import lora
from marble.models.lora_layer import Factor, LeanLinear
from marble.models.merge import merged
from marble.recipe import load_recipe
from measure import timed

K, TRAINED, DRAWN = 5, 9, 36


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
        return self.forward(count)

    def forward(self, count: int) -> Tensor:
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


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
