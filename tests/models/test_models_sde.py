"""The sampler with noise: its marginals, its density, its windows."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from marble.models.sde import Sde, log_density, slope, transition

MEAN, SPREAD = 1.5, 0.4


def exact_velocity(x, sigma):
    """v = E[ε − x_0 | x_σ] for x_0 ~ N(1.5, 0.4²)."""
    s = sigma.view(-1, *[1] * (x.dim() - 1)).to(x)
    around = (x - (1 - s) * MEAN) / ((1 - s) ** 2 * SPREAD**2 + s**2)
    return s * around - (MEAN + (1 - s) * SPREAD**2 * around)


@pytest.mark.parametrize("window", [None, 40])
def test_draws_the_flows_distribution(window):
    """Whatever noise is added, the reverse SDE ends where the flow does."""
    sigmas = torch.linspace(1, 0, 201).tolist()
    noise = torch.randn(6, 20_000, generator=torch.Generator().manual_seed(0))
    sampler = Sde(range(6), noise=1.2, window=window)
    drawn = sampler(exact_velocity, noise, sigmas)
    assert abs(float(drawn.mean()) - MEAN) < 0.01
    assert abs(float(drawn.std()) - SPREAD) < 0.01
    assert abs(float(np.corrcoef(noise[0], drawn[0])[0, 1])) < (0.5 if window is None else 0.999)


def test_log_density_is_that_of_what_is_drawn():
    """In one dimension: it integrates to 1, with the mean and spread of a million draws."""
    x, v = torch.tensor([[0.7]], dtype=torch.float64), torch.tensor([[-0.4]], dtype=torch.float64)
    sigma, following = torch.tensor([0.6], dtype=torch.float64), torch.tensor([0.45])
    mean, std = transition(x, v, sigma, following.double(), 0.7, 0.9)

    def density(y, power=0):
        value = log_density(torch.tensor([[y]], dtype=torch.float64), mean, std)
        return float(value.exp()) * y**power

    assert quad(density, -5, 5)[0] == pytest.approx(1, abs=1e-9)
    # One step of the SDE in a thousand smaller ones of frozen drift and noise, by simulation.
    score = -(0.7 + 0.4 * -0.4) / 0.6
    g2 = 0.49 * 0.6 / 0.4
    draws = np.random.default_rng(0).normal(
        0.7 - 0.15 * -0.4 + 0.5 * g2 * 0.15 * score, np.sqrt(g2 * 0.15), 1_000_000
    )
    assert quad(density, -5, 5, args=(1,))[0] == pytest.approx(draws.mean(), abs=2e-3)
    spread = quad(density, -5, 5, args=(2,))[0] - quad(density, -5, 5, args=(1,))[0] ** 2
    assert spread == pytest.approx(draws.var(), rel=5e-3)
    shape = torch.randn(1, 2, 3, dtype=torch.float64)
    together = log_density(shape, 0 * shape, torch.tensor([0.5], dtype=torch.float64))
    alone = sum(
        float(log_density(s.view(1, 1), 0 * s.view(1, 1), torch.tensor([0.5]).double()))
        for s in shape.flatten()
    )
    assert float(together) == pytest.approx(alone, rel=1e-12)


def test_slope_is_the_derivative_of_the_mean():
    x = torch.randn(3, 4, dtype=torch.float64)
    sigma = torch.tensor([1.0, 0.6, 0.05], dtype=torch.float64)
    following = sigma - torch.tensor([0.2, 0.1, 0.05], dtype=torch.float64)
    means = [
        transition(x, v, sigma, following, 0.7, 0.8)[0]
        for v in (torch.zeros_like(x), torch.ones_like(x))
    ]
    expected = slope(sigma, following, 0.7, 0.8)[:, None].expand(3, 4)
    torch.testing.assert_close(means[1] - means[0], expected)
    assert expected.isfinite().all()  # also at σ = 1


def test_only_the_window_has_noise_and_is_kept():
    sigmas = torch.linspace(1, 0, 9).tolist()
    noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    sampler = Sde([1, 2, 3, 4], noise=0.7, window=2, keep=True)
    x_0 = sampler(exact_velocity, noise, sigmas)
    path = sampler.kept["path"]
    assert path.shape == (4, 3, 3)
    torch.testing.assert_close(path[:, 0], noise)
    x = path[:, 2]
    for n in range(2, 8):
        x = x + (sigmas[n + 1] - sigmas[n]) * exact_velocity(x, torch.full((4,), sigmas[n]))
    torch.testing.assert_close(x_0, x)
    for n in (0, 1):  # by more than the drift of Euler's step
        straight = path[:, n] + (sigmas[n + 1] - sigmas[n]) * exact_velocity(
            path[:, n], torch.full((4,), sigmas[n])
        )
        assert (path[:, n + 1] - straight).abs().min() > 0
    alone = Sde([3], noise=0.7, window=2)(exact_velocity, noise[2:3], sigmas)
    torch.testing.assert_close(alone, x_0[2:3])  # whoever is drawn beside it
