"""AWM, GRPO and DPO: loss and K gradients against what their papers write, one reward at a time."""

import numpy as np
import pytest
import torch
from _literal import (
    NAMES,
    NAN,
    advantages,
    close,
    flat,
    grad,
    make_data,
    make_model,
    marble_coefficients,
)
from torch.distributions import Normal

from marble import Balancer
from marble.objectives import Point, objective_class

A_MAX, BETA, NOISE, TOP, KL = 1.5, 2.0, 0.7, 0.95, 0.3
CLIP = {"awm": 0.05, "grpo": 0.01}
OPTIONS = {"awm": {"clip": CLIP["awm"]}, "grpo": {"clip": CLIP["grpo"]}, "dpo": {"beta": BETA}}


class Case:
    """Eight samples of two prompts, one reward that does not apply to the second."""

    def __init__(self, name: str, k: int = 3) -> None:
        self.name, self.model, self.data = name, make_model(), make_data(k=k, masked=k > 1)
        d = self.data
        if name == "dpo":  # a pair shares noise and level
            d.noise, d.t = d.noise[::2].repeat_interleave(2, 0), d.t[::2].repeat_interleave(2)
            d.x_t = d.x_0 + d.t.view(-1, 1, 1) * (d.noise - d.x_0)
            d.rewards[2 % k, 1] = d.rewards[2 % k, 0]  # a tie
        # Not far from v_θ, so that some ratios are clipped and some are not.
        with torch.no_grad():
            d.v_old = self.model(d.x_t, d.t) + 0.3 * d.v_old
        self.next = d.t - 0.1
        mean, std = step(d.x_t, d.v_old, d.t, self.next)
        g = torch.Generator().manual_seed(5)
        self.taken = mean + std * torch.randn(mean.shape, generator=g, dtype=torch.float64)
        self.objective = objective_class(name)(a_max=A_MAX, **OPTIONS[name])

    def point(self, at) -> Point:
        d, n = self.data, len(at)
        kept = {"taken": self.taken[at], "next": self.next[at]}
        full = {"noise": NOISE, "top": TOP}
        kept |= {key: torch.full((n,), value, dtype=torch.float64) for key, value in full.items()}
        return Point(d.x_t[at], d.t[at], d.x_0[at], d.noise[at], d.v_old[at], d.v_ref[at], KL, kept)

    def balancer(self, method: str) -> Balancer:
        options = {"objective": self.objective, "measure_every": 1, "every": 1}
        return Balancer(self.model, NAMES[: len(self.data.rewards)], method=method, **options)

    def step(self, method: str, parts: int = 2):
        balancer, d = self.balancer(method), self.data
        self.model.zero_grad()
        plan = balancer.begin_step(balancer.batch(d.rewards, d.group), 0, micro_batches=parts)
        for at in torch.arange(8).chunk(parts):
            with plan.recording():
                v = self.model(d.x_t[at], d.t[at])
            plan.backward(v, self.point(at), at)
        return balancer, plan.finish()

    def literal(self) -> tuple[np.ndarray, list[float]]:
        """[K, P] gradients and losses, by one forward and one backward for each reward."""
        adv = np.clip(advantages(self.data.rewards, self.data.group), -A_MAX, A_MAX)
        rows, losses = [], []
        for adv_k in adv:
            loss = getattr(self, f"_{self.name}")(adv_k)
            rows.append(flat(self.model, loss))
            losses.append(float(loss.detach()))
        return np.array(rows), losses

    def _error(self, w, i):
        """The pretraining loss of sample i, weighted by its timestep."""
        d = self.data
        return d.t[i] * ((w[i] - (d.noise[i] - d.x_0[i])) ** 2).mean()

    def _awm(self, adv):
        d, parts = self.data, []
        v = self.model(d.x_t, d.t)
        for i in np.flatnonzero(~np.isnan(adv)):
            ratio = (self._error(d.v_old, i) - self._error(v, i)).exp()
            parts.append(published_clip(ratio, adv[i], CLIP["awm"]))
        return torch.stack(parts).mean()

    def _grpo(self, adv):
        d, parts = self.data, []
        v = self.model(d.x_t, d.t)
        for i in np.flatnonzero(~np.isnan(adv)):
            logs = []
            for w in (v[i], d.v_old[i]):
                mean, std = step(d.x_t[i : i + 1], w[None], d.t[i : i + 1], self.next[i : i + 1])
                logs.append(Normal(mean, std).log_prob(self.taken[i : i + 1]).mean())
            ratio = (std.squeeze() * (logs[0] - logs[1])).exp()
            parts.append(published_clip(ratio, adv[i], CLIP["grpo"]))
        return torch.stack(parts).mean()

    def _dpo(self, adv):
        d, parts = self.data, []
        v = self.model(d.x_t, d.t)

        for i in range(0, 8, 2):
            if np.isnan(adv[[i, i + 1]]).any() or adv[i] == adv[i + 1]:
                continue
            win, lose = (i, i + 1) if adv[i] > adv[i + 1] else (i + 1, i)
            better, worse = (self._error(v, i) - self._error(d.v_old, i) for i in (win, lose))
            parts.append(-torch.nn.functional.logsigmoid(-BETA * (better - worse)))
        return torch.stack(parts).mean()

    def outside(self) -> np.ndarray:
        d = self.data
        v = self.model(d.x_t, d.t)
        if self.name != "grpo":
            return flat(self.model, KL * (v - d.v_ref).square().mean())
        mine, std = step(d.x_t, v, d.t, self.next)
        base, _ = step(d.x_t, d.v_ref, d.t, self.next)
        kl = torch.distributions.kl_divergence(Normal(mine, std), Normal(base, std))
        return flat(self.model, KL * kl.mean())


def published_clip(ratio, adv, clip):
    return -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv)


def step(x, v, sigma, following):
    """Mean and std of an Euler–Maruyama step of the reverse SDE, as the paper writes it."""
    s, dt = sigma.view(-1, 1, 1), (following - sigma).view(-1, 1, 1)  # dt < 0
    level = NOISE * (s / (1 - s)).sqrt()
    drift = v + level**2 / (2 * s) * (x + (1 - s) * v)
    return x + drift * dt, level * (-dt).sqrt()


@pytest.mark.parametrize("name", OPTIONS)
def test_k_gradients_are_those_of_k_literal_losses(name):
    case = Case(name)
    rows, losses = case.literal()
    balancer, report = case.step("marble")
    found = balancer.jacobian.rows.data[0, :3].numpy()
    for k in range(3):
        assert close(found[k], rows[k], 1e-12), k
    alpha, c = marble_coefficients(rows)
    np.testing.assert_allclose(report.alpha_raw_K, alpha, atol=1e-9)
    assert close(grad(case.model), c @ rows + case.outside(), 1e-9)
    assert report.loss == pytest.approx(
        float(report.coefficients_K @ losses), rel=1e-7
    )  # logged with fp32 shares
    if name != "dpo":
        ratio = case.objective.log_ratio(
            case.model(case.data.x_t, case.data.t), case.point(torch.arange(8))
        ).exp()
        inside = (ratio - 1).abs() < CLIP[name]
        assert inside.any() and not inside.all()


@pytest.mark.parametrize("name", OPTIONS)
def test_one_reward_is_the_published_loss_in_one_backward(name):
    """K = 1: an ordinary step's gradient is the paper's single-reward gradient and the KL's."""
    case = Case(name, k=1)
    rows, losses = case.literal()
    for parts in (1, 4):
        balancer = case.balancer("uniform")
        balancer.measure_every = 0
        case.model.zero_grad()
        d = case.data
        plan = balancer.begin_step(balancer.batch(d.rewards, d.group), 0, micro_batches=parts)
        for at in torch.arange(8).chunk(parts):
            plan.backward(case.model(d.x_t[at], d.t[at]), case.point(at), at)
        report = plan.finish()
        assert close(grad(case.model), rows[0] + case.outside(), 1e-12)
        assert report.loss == pytest.approx(losses[0], rel=1e-7)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("method", ["upgrad", "uniform", "weighted_sum", "gdpo", "progress"])
def test_a_recorded_step_is_the_sum_of_its_coefficients(name, method):
    """Two passes and one combination give what the coefficients say, whatever the method."""
    case = Case(name)
    rows, _ = case.literal()
    balancer, report = case.step(method)
    if balancer.merges:
        expected = balancer.jacobian.rows.data[0, 3].numpy()
        assert np.linalg.norm(expected) > 0
    else:
        expected = report.coefficients_K @ rows
    assert close(grad(case.model), expected + case.outside(), 1e-11)


def test_inapplicable_samples_and_ties_take_no_part_in_dpo():
    adv = torch.tensor([[1.0, -1.0, 0.5, 0.5, NAN, 2.0], [0.0, 3.0, NAN, NAN, 2.0, 1.0]])
    a, b = objective_class("dpo")().weights(adv)
    expected = [[1, 1, NAN, NAN, NAN, NAN], [0, 0, NAN, NAN, 1, 1]]
    np.testing.assert_array_equal(a.numpy(), expected)
    np.testing.assert_array_equal((a + b).nan_to_num(1.0).numpy(), np.ones((2, 6)))
