"""How long K per-reward gradients take, in units of one ordinary backward."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marble.jacobian.jacobian import Jacobian
from marble.objectives import NFT, Point, mix, terms

RANK = 8


def bench_gradients(
    ks: Sequence[int] = (5, 64),
    *,
    width: int = 256,
    depth: int = 4,
    tokens: int = 128,
    batch: int = 8,
    repeats: int = 7,
    retained_repeats: int = 2,
    device: str = "cpu",
    seed: int = 0,
) -> dict[str, Any]:
    """Times on forward graphs of a LoRA transformer (the forward itself is not timed):

    * ``ordinary``: the weighted loss and one backward;
    * ``two_pass``: all K gradients by `Jacobian.backward`;
    * ``retained``: K losses and K backwards over the retained graph.

    Everything is interleaved in rounds. Times are medians in ms; a ratio is the median over
    rounds of a time by the ordinary one of the same round, which other load on the machine
    disturbs least. Also given: the relative error of the two-pass Gram against the retained one.
    """
    torch.manual_seed(seed)
    model = Transformer(width, depth).to(device)
    bench = _Bench(model, batch, tokens, width, device)
    rewards = {k: torch.rand(k, batch, device=device) for k in ks}
    jacobians = {k: Jacobian(model, k) for k in ks}
    rows = {k: torch.zeros(k, jac.total, device=device) for k, jac in jacobians.items()}
    runs: dict[str, Callable[[], float]] = {"ordinary": partial(bench.ordinary, rewards[ks[0]])}
    for k in ks:
        runs[f"two_pass K={k}"] = partial(bench.two_pass, rewards[k], jacobians[k])
        runs[f"retained K={k}"] = partial(bench.retained, rewards[k], rows[k])
    rounds: list[dict[str, float]] = []
    for number in range(1 + repeats):
        due = {
            name: run
            for name, run in runs.items()
            if 1 <= number <= retained_repeats or not name.startswith("retained")
        }
        rounds.append({name: run() for name, run in due.items()})
    warm = rounds[1:]

    def median_ms(name: str) -> float:
        return 1e3 * statistics.median(r[name] for r in warm if name in r)

    def ratio(name: str) -> float:
        return statistics.median(r[name] / r["ordinary"] for r in warm if name in r)

    results = {
        f"K={k}": {
            "two_pass_ms": median_ms(f"two_pass K={k}"),
            "retained_ms": median_ms(f"retained K={k}"),
            "two_pass_ratio": ratio(f"two_pass K={k}"),
            "retained_ratio": ratio(f"retained K={k}"),
            "gram_relative_error": _gram_error(jacobians[k], rows[k]),
        }
        for k in ks
    }
    ratios = [result["two_pass_ratio"] for result in results.values()]
    return {
        "ordinary_ms": median_ms("ordinary"),
        "results": results,
        "ratio_spread": max(ratios) / min(ratios) - 1,
        "setup": {
            "model": f"transformer, width {width}, depth {depth}, LoRA rank {RANK}, fp32",
            "lora_parameters": sum(p.numel() for p in bench.parameters),
            "batch": batch,
            "tokens": tokens,
            "repeats": repeats,
            "retained_repeats": retained_repeats,
            "unit": "ms; the forward is not timed",
        },
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _gram_error(jac: Jacobian, rows: Tensor) -> float:
    exact = (rows.double() @ rows.double().T).cpu()
    return float((jac.gram() - exact).norm() / exact.norm())


class _Bench:
    """Each method runs a forward and returns the seconds of what follows it."""

    def __init__(self, model: nn.Module, batch: int, tokens: int, width: int, device: str) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = device
        self.nft = NFT()
        x_0, noise, v_old = torch.randn(3, batch, tokens, width, device=device)
        t = torch.linspace(0.1, 0.9, batch, device=device)
        self.x_t = x_0 + t[:, None, None] * (noise - x_0)
        self.point = Point(self.x_t, t, x_0, v_old=v_old)

    def ordinary(self, r_KB: Tensor) -> float:
        v = self.model(self.x_t)
        start = self._now()
        plus, minus = self.nft.sides(v, self.point)
        rho_plus, rho_minus = mix(r_KB.new_full(r_KB.shape[:1], 1 / len(r_KB)), r_KB, 1 - r_KB)
        (rho_plus * plus + rho_minus * minus).sum().backward()
        seconds = self._now() - start
        for parameter in self.parameters:
            parameter.grad = None
        return seconds

    def two_pass(self, r_KB: Tensor, jac: Jacobian) -> float:
        jac.zero()
        with jac.recording():
            v = self.model(self.x_t)
        start = self._now()
        P, N = self.nft.cotangents(v, self.point)
        share = torch.full_like(r_KB, 1 / r_KB.shape[1])
        jac.backward(v, terms(P, N, r_KB, 1 - r_KB, share)[0])
        return self._now() - start

    def retained(self, r_KB: Tensor, rows: Tensor) -> float:
        v = self.model(self.x_t)
        start = self._now()
        plus, minus = self.nft.sides(v, self.point)
        for r_B, row in zip(r_KB, rows):
            loss = (r_B * plus + (1 - r_B) * minus).mean()
            grads = torch.autograd.grad(loss, self.parameters, retain_graph=True)
            row.copy_(torch.cat([grad.flatten() for grad in grads]))
        return self._now() - start

    def _now(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()


class LoraLinear(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, RANK, bias=False)
        self.up = nn.Linear(RANK, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.q, self.k, self.v, self.out = (LoraLinear(width) for _ in range(4))
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        ).requires_grad_(False)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = self.norms[0](x)
        q, k, v = (
            project(y).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(attended.reshape(batch, tokens, width))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Sequential):
    """Stands for a diffusion transformer: frozen blocks with a LoRA on the attention."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(*(Block(width) for _ in range(depth)))
