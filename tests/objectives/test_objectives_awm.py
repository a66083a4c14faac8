"""Advantage-weighted matching: the velocity it pulls towards, with the noise kept and without."""

import torch

from marble.objectives import Point, objective_class

X_0, NOISE, V = torch.randn(3, 5, 2, 3, generator=torch.Generator().manual_seed(0)).double()
T = torch.linspace(0.1, 1.0, 5).double()
X_T = X_0 + T.view(-1, 1, 1) * (NOISE - X_0)


def test_the_noise_is_found_again_where_it_was_not_kept():
    awm = objective_class("awm")()
    kept, lost = Point(X_T, T, X_0, NOISE), Point(X_T, T, X_0)
    expected = (V - (NOISE - X_0)).square().flatten(1).mean(1)
    for point in (kept, lost):
        torch.testing.assert_close(awm.sides(V, point)[0], expected)
    # Rounding of x_t, here a large one, must not reach the target where the noise is known.
    rounded = Point(X_T + 0.5, T, X_0, NOISE)
    torch.testing.assert_close(awm.sides(V, rounded)[0], expected)
    leaf = V.clone().requires_grad_()
    awm.sides(leaf, rounded)[0].sum().backward()
    torch.testing.assert_close(awm.cotangents(V, rounded)[0], leaf.grad)
