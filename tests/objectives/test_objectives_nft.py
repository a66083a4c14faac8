"""The NFT loss against its formula, and its cotangents against autograd."""

import pytest
import torch

from marble.errors import MarbleError
from marble.objectives import NFT, Point

SHAPE = (5, 3, 4, 4)


def sample(dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    v, v_old, x_0, noise = (torch.randn(SHAPE, generator=g, dtype=torch.float64) for _ in range(4))
    t = torch.rand(5, generator=g, dtype=torch.float64) * 0.9 + 0.05
    column = t[:, None, None, None]
    x_t = (1 - column) * x_0 + column * noise
    return tuple(x.to(dtype) for x in (v, v_old, x_t, x_0, t, noise))


def point(v_old, x_t, x_0, t, noise=None):
    return Point(x_t, t, x_0, noise, v_old=v_old)


def make(adaptive, **options):
    return NFT(form="adaptive" if adaptive else "plain", **options)


def literal(v, v_old, x_t, x_0, t, noise, *, beta, a_max, adaptive):
    """Sample by sample, as method and public code write it."""
    rows = []
    for i in range(len(t)):
        sides = []
        for mixed in (beta * v[i] + (1 - beta) * v_old[i], (1 + beta) * v_old[i] - beta * v[i]):
            if adaptive:
                error = x_t[i] - t[i] * mixed - x_0[i]
                weight = error.abs().mean().clamp(min=1e-5).detach()
                sides.append((error**2 / weight).mean())
            else:
                sides.append(((mixed - (noise[i] - x_0[i])) ** 2).mean())
        rows.append(torch.stack(sides) * a_max / beta)
    return torch.stack(rows).T


@pytest.mark.parametrize("adaptive", [True, False])
def test_sides_are_the_formula(adaptive):
    inputs = sample()
    options = {"beta": 0.3, "a_max": 4.0, "adaptive": adaptive}
    v, *rest = inputs
    plus, minus = make(**options).sides(v, point(*rest))
    torch.testing.assert_close(torch.stack([plus, minus]), literal(*inputs, **options))


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("with_noise", [True, False])
def test_cotangents_are_the_gradients(adaptive, with_noise):
    v, *rest = sample()
    rest = rest if with_noise else rest[:-1]
    v.requires_grad_()
    nft = make(adaptive)
    sides = nft.sides(v, point(*rest))
    cotangents = nft.cotangents(v, point(*rest))
    for side, cotangent in zip(sides, cotangents):
        (expected,) = torch.autograd.grad(side.sum(), v)
        torch.testing.assert_close(cotangent, expected, rtol=1e-12, atol=1e-14)
        assert not cotangent.requires_grad


def test_affine_in_r():
    v, *rest = sample()
    v.requires_grad_()
    nft = NFT()
    r = torch.linspace(0, 1, 5, dtype=torch.float64)
    plus, minus = nft.sides(v, point(*rest))
    (expected,) = torch.autograd.grad((r * plus + (1 - r) * minus).sum(), v)
    P, N = nft.cotangents(v, point(*rest))
    torch.testing.assert_close(N + r[:, None, None, None] * (P - N), expected)


def test_bf16_inputs_are_computed_in_fp32():
    def at(given):
        return given[0], point(*given[1:])

    inputs = sample(torch.bfloat16)
    wide = tuple(x.float() for x in inputs)
    for adaptive in (True, False):
        nft = make(adaptive)
        for low, high in zip(nft.sides(*at(inputs)), nft.sides(*at(wide))):
            assert low.dtype == torch.float32 and torch.equal(low, high)
        for low, high in zip(nft.cotangents(*at(inputs)), nft.cotangents(*at(wide))):
            assert low.dtype == torch.float32 and torch.equal(low, high)


def test_a_perfect_prediction_stays_finite():
    """The adaptive weight has a floor, so a zero error gives zero, not 0/0."""
    _, _, x_t, x_0, t, noise = sample()
    v = (noise - x_0).requires_grad_()
    plus, _ = NFT().sides(v, point(v.detach(), x_t, x_0, t))
    P, N = NFT().cotangents(v, point(v.detach(), x_t, x_0, t))
    assert plus.abs().max() < 1e-9 and P.isfinite().all() and N.isfinite().all()


def test_on_policy_sides_pull_in_opposite_directions():
    v, _, *rest = sample()
    P, N = NFT().cotangents(v, point(v, *rest))
    torch.testing.assert_close(P, -N)


def test_wrong_input():
    v, v_old, x_t, x_0, t, noise = sample()
    with pytest.raises(MarbleError, match="v_old has shape"):
        NFT().sides(v, point(v_old[:2], x_t, x_0, t))
    with pytest.raises(MarbleError, match="noise has shape"):
        NFT().sides(v, point(v_old, x_t, x_0, t, noise[:, :1]))
    with pytest.raises(MarbleError, match="one timestep per sample"):
        NFT().cotangents(v, point(v_old, x_t, x_0, t[:1]))
    with pytest.raises(MarbleError, match=r"beta = 0.0: Input should be greater than 0"):
        NFT(beta=0.0)


def test_weights_are_the_optimality_probability():
    adv = torch.tensor([[-7.0, -5.0, 0.0, 2.5, 6.0, float("nan")]], dtype=torch.float64)
    a, b = NFT(a_max=5.0).weights(adv)
    assert a[0, :-1].tolist() == [0.0, 0.0, 0.5, 0.75, 1.0] and a[0, -1].isnan()
    assert (a + b)[0, :-1].tolist() == [1.0] * 5 and b[0, -1].isnan()
