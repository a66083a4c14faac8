"""A tiny LoRA flow model, a step's data, and the method written out literally: K losses, K
backwards, scipy for the min-norm point. Shares no code with the library but for `make_balancer`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from marble import Balancer
from marble.objectives import NFT, Point

NAMES = ["ocr", "clip", "taste"]
BETA, A_MAX = 0.1, 1.5  # so small that eight samples reach the clamp
NAN = float("nan")


class Lora(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(fan_in, fan_out).requires_grad_(False)
        self.down = nn.Linear(fan_in, rank, bias=False)
        self.up = nn.Linear(rank, fan_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Flow(nn.Module):
    """v(x, t) on tokens [B, 3, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix, self.last = Lora(5, 8), Lora(8, 8), Lora(8, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = torch.cat([x, t.view(-1, 1, 1).expand(-1, x.shape[1], 1).to(x)], -1)
        h = self.middle(torch.tanh(self.first(h)))
        h = torch.tanh(self.mix(h)) + h.mean(1, keepdim=True)
        return self.last(h)

    def middle(self, h: Tensor) -> Tensor:
        return h


def make_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> Flow:
    torch.manual_seed(seed)
    return Flow().to(dtype)


@dataclass
class Data:
    rewards: Tensor
    group: Tensor
    x_0: Tensor
    x_t: Tensor
    t: Tensor
    noise: Tensor
    v_old: Tensor
    v_ref: Tensor


def make_data(k: int = 3, n: int = 8, *, seed: int = 1, masked: bool = True, dtype=torch.float64):
    """Two groups; with `masked`, reward 1 does not apply to the second one."""
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(k, n, generator=g, dtype=torch.float64)
    rewards *= torch.logspace(0, 1, k, dtype=torch.float64)[:, None]
    rewards[0, 0] = 40.0
    group = torch.arange(n) // (n // 2)
    if masked and k > 1:
        rewards[1, n // 2 :] = NAN
    x_0, noise, v_old, v_ref = torch.randn(4, n, 3, 4, generator=g, dtype=torch.float64).to(dtype)
    t = torch.linspace(0.2, 0.9, n, dtype=dtype)
    x_t = x_0 + t.view(-1, 1, 1) * (noise - x_0)
    return Data(rewards, group, x_0, x_t, t, noise, v_old, v_ref)


def advantages(rewards: Tensor, group: Tensor) -> np.ndarray:
    """(R − mean of the group) / (std over the valid samples + 1e-4), sample by sample."""
    values, groups = rewards.numpy(), group.numpy()
    out = np.full_like(values, NAN)
    for k in range(len(values)):
        spread = np.nanstd(values[k]) if not np.isnan(values[k]).all() else NAN
        for i in range(values.shape[1]):
            if not np.isnan(values[k, i]):
                mean = np.nanmean(values[k, groups == groups[i]])
                out[k, i] = (values[k, i] - mean) / (spread + 1e-4)
    return out


def probability(adv: np.ndarray) -> np.ndarray:
    return np.clip(0.5 + adv / (2 * A_MAX), 0, 1)


def sides(v: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """(L⁺, L⁻) per sample, times A_max/β, adaptive form."""
    out = []
    for v_side in (
        BETA * v + (1 - BETA) * data.v_old,
        (1 + BETA) * data.v_old - BETA * v,
    ):
        error = data.x_t - data.t.view(-1, 1, 1) * v_side - data.x_0
        weight = error.detach().abs().flatten(1).mean(1).clamp_min(1e-5)
        out.append(A_MAX / BETA * error.square().flatten(1).mean(1) / weight)
    return out[0], out[1]


def flat(model: nn.Module, loss: Tensor) -> np.ndarray:
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, parameters)
    return torch.cat([g.flatten() for g in grads]).double().numpy()


def gradients(model: Flow, data: Data, r: np.ndarray) -> np.ndarray:
    """[K, P]: for each row of r (NaN = not applicable) one forward and one backward."""
    rows = []
    for r_k in r:
        chosen = np.flatnonzero(~np.isnan(r_k))
        plus, minus = sides(model(data.x_t, data.t), data)
        weight = torch.as_tensor(r_k[chosen]).to(plus)
        rows.append(flat(model, (weight * plus[chosen] + (1 - weight) * minus[chosen]).mean()))
    return np.array(rows)


def common_pull(model: Flow, data: Data) -> np.ndarray:
    """W: the gradient at r = 1/2, over all samples."""
    plus, minus = sides(model(data.x_t, data.t), data)
    return flat(model, (0.5 * plus + 0.5 * minus).mean())


def kl_gradient(model: Flow, data: Data) -> np.ndarray:
    v = model(data.x_t, data.t)
    return flat(model, (v - data.v_ref).square().mean())


def min_norm(g: np.ndarray) -> np.ndarray:
    """The rows' min-norm point, by NNLS: min ‖gᵀx‖² + (Σx − 1)² over x ≥ 0, rescaled."""
    system = np.vstack([g.T, np.ones(len(g))])
    target = np.zeros(len(system))
    target[-1] = 1.0
    x = nnls(system, target, maxiter=1000)[0]
    return x / x.sum()


def marble_coefficients(g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(α*, c): normalise, solve, rescale."""
    norms = np.linalg.norm(g, axis=1)
    alpha = min_norm(g / norms[:, None])
    return alpha, alpha * norms.mean() / norms


def make_balancer(
    model: nn.Module, names: list[str] | None = None, *, target="full", **options
) -> Balancer:
    objective = NFT(beta=BETA, a_max=A_MAX)
    return Balancer(model, names or NAMES, objective=objective, target=target, **options)


def sized(c: np.ndarray, r: np.ndarray) -> np.ndarray:
    """c / RMS over samples of Σ_k c_k (N/n_k)·2A_max(r_ki − 1/2), sample by sample."""
    n = (~np.isnan(r)).sum(1)
    some = [i for i in range(r.shape[1]) if not np.isnan(r[:, i]).all()]
    combined = [
        sum(
            c[k] * len(some) / n[k] * 2 * A_MAX * (r[k, i] - 0.5)
            for k in range(len(c))
            if not np.isnan(r[k, i])
        )
        for i in some
    ]
    return c / np.sqrt(np.mean(np.square(combined)))


def run_step(balancer, model, data, step=0, *, parts=2, kl=0.0, chosen=None, batch=None):
    """One step through the façade in `parts` micro-batches (or those given as lists): its report
    and flat gradient."""
    index = torch.arange(len(data.t)) if chosen is None else torch.as_tensor(chosen)
    if not isinstance(parts, int):
        pieces = [torch.as_tensor(part) for part in parts]
    else:
        pieces = [piece for piece in index.chunk(parts) if len(piece)] if len(index) else []
    model.zero_grad()
    batch = balancer.batch(data.rewards, data.group) if batch is None else batch
    plan = balancer.begin_step(batch, step, micro_batches=len(pieces))
    for at in pieces:
        with plan.recording():
            v = model(data.x_t[at], data.t[at])
        point = Point(
            data.x_t[at], data.t[at], data.x_0[at], data.noise[at],
            v_old=data.v_old[at], v_ref=data.v_ref[at] if kl else None, kl=kl,
        )  # fmt: skip
        plan.backward(v, point, at)
    report = plan.finish()
    return report, grad(model)


def grad(model: nn.Module) -> np.ndarray:
    parts = [
        torch.zeros(p.numel()) if p.grad is None else p.grad.flatten()
        for p in model.parameters()
        if p.requires_grad
    ]
    return torch.cat(parts).double().numpy()


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-10) -> bool:
    """Relative to the longer of the two."""
    return bool(np.linalg.norm(a - b) <= tolerance * max(np.linalg.norm(a), np.linalg.norm(b)))
