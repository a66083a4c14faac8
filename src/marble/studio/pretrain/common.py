"""Small things every pretraining stage uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Budget:
    """A stage ends at `seconds` of wall clock or at `steps`, whichever comes first."""

    seconds: float
    steps: int = 10**9
    started: float = field(default_factory=time.perf_counter)

    def fraction(self, step: int) -> float:
        return max(step / self.steps, (time.perf_counter() - self.started) / self.seconds)


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, plain fp32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def batches(n: int, size: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    """Index batches without end; a new permutation every pass. Small sets give small batches."""
    generator = torch.Generator(device).manual_seed(seed)
    size = min(size, n)
    while True:
        order = torch.randperm(n, generator=generator, device=device)
        for start in range(0, n - size + 1, size):
            yield order[start : start + size]


def to_unit(images: Tensor) -> Tensor:
    """uint8 [n, 3, H, W] → float in [−1, 1]."""
    return images.float() / 127.5 - 1


def cosine_lr(optimiser: torch.optim.Optimizer, peak: float, step: int, done: float) -> None:
    """Warm-up over 200 steps, then a cosine to 2 % of the peak as the budget is spent."""
    cosine = 0.5 * (1 + torch.cos(torch.tensor(min(done, 1.0) * torch.pi)).item())
    lr = peak * min(1.0, (step + 1) / 200) * (0.02 + 0.98 * cosine)
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)  # in place: a recorded step reads it there
        else:
            group["lr"] = lr


class Recorded:
    """A training step that a GPU replays as one CUDA graph.

    Networks as small as the studio's are bound by the launching of kernels. The first calls run as
    they are, on real data; then the step is recorded with fixed shapes. On a CPU it is simply
    called.

    `step(*inputs) -> loss` has to do all of it (forward, backward, optimiser), must not wait for
    the GPU, and finds no gradients when it begins. Learning rates have to be tensors on the device.
    """

    WARM_UP = 3

    def __init__(
        self, step: Callable[..., Tensor], optimisers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.step, self.optimisers, self.calls = step, optimisers, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.loss: Tensor | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.calls += 1
        if inputs[0].device.type != "cuda":
            self._forget_gradients()
            return self.step(*inputs)
        if self.calls <= self.WARM_UP:
            return self._run_aside(inputs)
        if self.graph is None:
            self.inputs = [i.clone() for i in inputs]
            self._forget_gradients()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.step(*self.inputs)
        for held, new in zip(self.inputs, inputs, strict=True):
            held.copy_(new)
        self.graph.replay()
        assert self.loss is not None
        return self.loss

    def _run_aside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """On a stream of its own, as recording wants it."""
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            self._forget_gradients()
            loss = self.step(*inputs)
        main.wait_stream(side)
        return loss

    def _forget_gradients(self) -> None:
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)


class WeightAverage:
    """Exponential moving average of parameters: cleaner samples than the last iterate."""

    def __init__(self, modules: list[nn.Module], decay: float) -> None:
        self.live: list[Tensor] = [p for module in modules for p in module.parameters()]
        self.mean = [p.detach().clone() for p in self.live]
        self.decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.mean, self.live, 1 - decay)

    @torch.no_grad()
    def copy_to_live(self) -> None:
        for live, mean in zip(self.live, self.mean):
            live.copy_(mean)
