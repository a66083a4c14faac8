"""The samplers against closed forms and against diffusers' own schedulers."""

import math

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler

from marble.errors import MarbleError
from marble.models import samplers
from marble.models.samplers import dpm_solver_pp_2m, euler, sample_ode


def gaussian(std):
    """Exact velocity when data are N(0, std²): x_0 and ε are jointly Gaussian with x_σ."""

    def velocity(x, sigma):
        s = sigma.view(-1, *[1] * (x.dim() - 1))
        variance = (1 - s) ** 2 * std**2 + s**2
        return (s - (1 - s) * std**2) / variance * x

    return velocity


def bimodal(x, sigma):
    """Exact velocity when data are ±1 with a spread of .1, half each."""
    s = sigma.view(-1, 1, 1)
    modes = torch.tensor([-1.0, 1.0])
    off = x.unsqueeze(-1) - (1 - s) * modes
    variance = ((1 - s) * 0.1) ** 2 + s**2
    weight = (-0.5 * off**2 / variance).softmax(-1)
    clean, noise = modes + (1 - s) * 0.01 / variance * off, s / variance * off
    return (weight * (noise - clean)).sum(-1)


def nonlinear(x, sigma):
    s = sigma.view(-1, *[1] * (x.dim() - 1))
    return torch.tanh(x * (1 + s)) - 0.3 * torch.cos(3 * s) * x.roll(1, -1)


def shifted(steps, shift):
    sigma = torch.linspace(1, 0.002, steps)
    return [*(shift * sigma / (1 + (shift - 1) * sigma)).tolist(), 0.0]


def test_orders_of_convergence():
    """The flow of a Gaussian maps ε to std·ε; refining the grid must show each sampler's order."""
    noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))

    def error(sampler, steps):
        grid = torch.linspace(1, 0, steps + 1)
        return (sample_ode(sampler, gaussian(1.5), noise, grid) - 1.5 * noise).abs().mean().item()

    for sampler, order in (("euler", 1), ("dpm", 2)):
        assert math.log(error(sampler, 10) / error(sampler, 40), 4) > 0.9 * order
    assert error("dpm", 10) < error("euler", 10) / 5


@pytest.mark.parametrize("steps", [1, 2, 10, 25])
@pytest.mark.parametrize("own_grid", [False, True])
def test_dpm_agrees_with_diffusers(steps, own_grid):
    """Same update on diffusers' flow grid (from .999 down) and on ours (from 1 down)."""
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    scheduler.set_timesteps(steps)
    if not own_grid:
        scheduler.sigmas = torch.tensor([*torch.linspace(1, 0, steps + 1).tolist()])
    x = noise = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    sigmas = scheduler.sigmas.clone()
    scheduler.set_begin_index(0)
    for i, t in enumerate(scheduler.timesteps):
        x = scheduler.step(nonlinear(x, sigmas[i].expand(2)), t, x, return_dict=False)[0]
    ours = dpm_solver_pp_2m(nonlinear, noise, sigmas.tolist())
    assert torch.allclose(ours, x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("velocity", [gaussian(0.5), gaussian(1.5), bimodal])
def test_the_long_last_step_is_not_extrapolated_over(velocity, monkeypatch):
    """On the pipeline's grid plain 2M is worse than Euler; the limit on growth cures that."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(10)
    noise = torch.randn(64, 8, generator=torch.Generator().manual_seed(2))
    exact = euler(velocity, noise, torch.linspace(1, 0, 2001).tolist())

    def error(sampler):
        x = sample_ode(sampler, velocity, noise, scheduler.sigmas)
        return (x - exact).abs().mean().item()

    limited = error("dpm")
    assert limited < error("euler")
    monkeypatch.setattr(samplers, "MOST_GROWTH", 1e9)
    assert error("dpm") > max(error("euler"), 1.5 * limited)


def test_the_model_is_asked_at_exactly_the_grid():
    grid = shifted(7, 2.5)
    for sampler in (euler, dpm_solver_pp_2m):
        asked = []

        def velocity(x, sigma, asked=asked):
            asked.append(sigma.clone())
            return torch.zeros_like(x)

        sampler(velocity, torch.ones(3, 2), grid)
        assert torch.equal(torch.stack(asked), torch.tensor(grid[:-1])[:, None].expand(-1, 3))


def test_one_step_jumps_to_the_prediction():
    noise = torch.randn(2, 5)
    for sampler in ("euler", "dpm"):
        x = sample_ode(sampler, nonlinear, noise, [1.0, 0.0])
        assert torch.allclose(x, noise - nonlinear(noise, torch.ones(2)), atol=1e-6)


def test_unknown_sampler():
    with pytest.raises(MarbleError, match="unknown sampler 'ddim'; known: dpm, euler"):
        sample_ode("ddim", nonlinear, torch.zeros(1, 1), [1.0, 0.0])
