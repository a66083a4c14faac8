"""`marble-paper` against a transcription of the published algorithm, on the same gradients."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from marble.balance import Balancer
from marble.objectives import NFT, Point
from marble.recipe import load_recipe

K, N, GROUP, WIDTH, EVERY, RHO = 4, 24, 6, 5, 3, 0.7


def published(gradients_of_steps):
    """The published algorithm, line by line: its directions for a sequence of [K, P] gradients.

    Every EVERY steps: unit gradients, the min-norm point of their hull, the mean norm as length;
    the first solution is taken whole, later ones enter an average. In between: Σ ᾱ_k g_k.
    """
    average = None
    for step, g in enumerate(gradients_of_steps):
        if step % EVERY == 0:
            norms = np.linalg.norm(g, axis=1)
            units = g / norms[:, None]
            alpha = min_norm(units)
            average = alpha if average is None else RHO * average + (1 - RHO) * alpha
            yield norms.mean() * alpha @ units
        else:
            yield average @ g


def min_norm(units):
    """By a general solver, from several starts; accurate to about 1e-8."""
    best = None
    for start in [np.full(len(units), 1 / len(units)), *np.eye(len(units)) * 0.9 + 0.1 / K]:
        found = minimize(
            lambda a: a @ units @ units.T @ a,
            start / start.sum(),
            jac=lambda a: 2 * units @ units.T @ a,
            bounds=[(0, 1)] * len(units),
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-16, "maxiter": 1000},
        )
        best = found if best is None or found.fun < best.fun else best
    return best.x


def probability(batch):
    """r = 1/2 + A/(2 A_max), within [0, 1]."""
    return (0.5 + batch.adv.adv_KN / 10).clamp(0, 1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.base = nn.Linear(WIDTH, WIDTH).double().requires_grad_(False)
        self.a = nn.Linear(WIDTH, 3, bias=False).double()
        self.b = nn.Linear(3, WIDTH, bias=False).double()
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def literal_gradients(model, nft, v_old, data, r_KN, valid_KN):
    """∇ of the mean NFT loss of each reward over the samples it applies to, one backward each."""
    x_t, x_0, t = data
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for r, valid in zip(torch.where(valid_KN, r_KN, 0.5), valid_KN):
        plus, minus = nft.sides(model(x_t), Point(x_t, t, x_0, v_old=v_old))
        loss = torch.where(valid, r * plus + (1 - r) * minus, 0.0).sum() / valid.sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("silent", [False, True], ids=["all-speak", "one-constant-reward"])
def test_marble_paper_is_the_published_algorithm(silent):
    """Also with a reward that tells no samples apart: the published code keeps it in the solve."""
    balance = load_recipe("studio", ["balance.method=marble-paper"]).balance
    assert (balance.method, balance.every, balance.rho) == ("marble-paper", 10, RHO)
    assert (balance.target, balance.drop_silent) == ("full", False)
    model, nft = Policy(), NFT()
    balancer = Balancer(
        model,
        list("abcd"),
        method=balance.method,
        objective=nft,
        every=EVERY,
        rho=balance.rho,
        drop_silent=balance.drop_silent,
        amortise=balance.amortise,
        target=balance.target,
    )
    generator = torch.Generator().manual_seed(5)
    # Not v_θ itself: a constant reward's gradient would be exactly 0, which nothing normalises.
    old = [p.detach() * 1.1 for p in model.parameters()]
    ours, theirs = [], []
    for step in range(8):
        noise, x_0 = torch.randn(2, N, WIDTH, generator=generator, dtype=torch.float64)
        t = torch.rand(N, generator=generator, dtype=torch.float64) * 0.8 + 0.1
        x_t = (1 - t[:, None]) * x_0 + t[:, None] * noise
        rewards = torch.randn(K, N, generator=generator, dtype=torch.float64)
        rewards[1, : N // 2] = torch.nan
        if silent:
            rewards[3] = 0.25
        batch = balancer.batch(rewards, torch.arange(N) // GROUP)
        live = [p.detach().clone() for p in model.parameters()]
        for p, value in zip(model.parameters(), old):
            p.data.copy_(value)
        v_old = model(x_t).detach()
        for p, value in zip(model.parameters(), live):
            p.data.copy_(value)
        theirs.append(
            literal_gradients(
                model, nft, v_old, (x_t, x_0, t), probability(batch), batch.adv.valid_KN
            )
        )
        plan = balancer.begin_step(batch, step, micro_batches=2)
        for index in torch.arange(N).chunk(2):
            with plan.recording():
                v = model(x_t[index])
            point = Point(x_t[index], t[index], x_0[index], v_old=v_old[index])
            plan.backward(v, point, index)
        plan.finish()
        grads = [p.grad for p in model.parameters() if p.requires_grad]
        ours.append(torch.cat([g.flatten() for g in grads]).numpy().copy())
        for p in model.parameters():
            if p.grad is not None:
                p.data.sub_(0.05 * p.grad)
                p.grad = None
        if step % 3 == 2:  # v_old follows at times, so that the two differ in between
            old = [0.5 * q + 0.5 * p.detach() for p, q in zip(model.parameters(), old)]
    for step, (mine, reference) in enumerate(zip(ours, published(theirs))):
        scale = np.linalg.norm(reference)
        assert np.linalg.norm(mine - reference) <= 1e-5 * scale, step


@pytest.mark.parametrize(
    "word",
    [
        "ridge=0.05",
        "probe=0.5",
        "hybrid=gate",
        "consolidate=5",
        "floors=[ocr]",
        "priorities.ocr=2",
        "drop_silent=true",
    ],
)
def test_nothing_else_is_accepted_beside_it(word):
    from marble.errors import MarbleError

    with pytest.raises(MarbleError, match="marble-paper is the rule as published"):
        load_recipe("studio", ["balance.method=marble-paper", f"balance.{word}"])
