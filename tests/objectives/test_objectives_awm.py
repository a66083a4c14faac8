"""Advantage-weighted matching: what it compares, with the noise kept and without, and its clip."""

import torch

from marble.objectives import Point, objective_class

X_0, NOISE, V, OLD = torch.randn(4, 5, 2, 3, generator=torch.Generator().manual_seed(0)).double()
T = torch.linspace(0.1, 1.0, 5).double()
X_T = X_0 + T.view(-1, 1, 1) * (NOISE - X_0)


def loss(v):
    return T * (v - (NOISE - X_0)).square().flatten(1).mean(1)


def test_the_noise_is_found_again_where_it_was_not_kept():
    awm = objective_class("awm")()
    expected = loss(OLD) - loss(V)
    for point in (Point(X_T, T, X_0, NOISE, OLD), Point(X_T, T, X_0, None, OLD)):
        torch.testing.assert_close(awm.log_ratio(V, point), expected)
    # Rounding of x_t, here a large one, must not reach the target where the noise is known.
    rounded = Point(X_T + 0.5, T, X_0, NOISE, OLD)
    torch.testing.assert_close(awm.log_ratio(V, rounded), expected)


def test_samples_that_have_gone_far_enough_pull_no_more():
    """Learned well enough (L⁺), or unlearned (L⁻); each sample stands on one side of the clip."""
    awm = objective_class("awm")(clip=0.01)
    target = NOISE - X_0
    closer, farther = OLD + 0.5 * (target - OLD), OLD - 0.5 * (target - OLD)
    for v, done in ((closer, 0), (farther, 1), (OLD, None)):
        found = awm.cotangents(v, Point(X_T, T, X_0, NOISE, OLD))
        for side in (0, 1):
            assert bool((found[side] == 0).all()) == (side == done)


def test_where_the_policies_agree_the_gradient_is_that_of_the_weighted_loss():
    awm = objective_class("awm")()
    leaf = OLD.clone().requires_grad_()
    loss(leaf).sum().backward()
    plus, minus = awm.cotangents(OLD, Point(X_T, T, X_0, NOISE, OLD))
    torch.testing.assert_close(plus, leaf.grad)
    torch.testing.assert_close(minus, -leaf.grad)
