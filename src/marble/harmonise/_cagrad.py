"""CAGrad: the best worst case near the mean (https://arxiv.org/abs/2110.14048)."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from marble.options import NonNegative

from ._linalg import Array
from ._min_norm import MinNorm, min_norm_point
from ._rule import GramRule, Normalise, Weights

_LARGEST = 1e6


class CAGrad(GramRule):
    """d = argmax min_k d·g_k over ‖d − g₀‖ ≤ c‖g₀‖, with g₀ the (preference-weighted) mean.

    The dual is d = g₀ + t Σ w_k g_k with w on the simplex. For a given t ≥ 0 that is the min-norm
    point of the vectors g₀ + t g_k, so the exact solver gives w, and ‖d − g₀‖ grows with t:
    bisection finds the t at the rim. c = 0 is the mean; c ≥ 1 tends to the min-norm direction.
    Where the gradients cancel (Pareto-stationary) t stops at 10⁶, with d short of the rim.
    """

    name = "cagrad"

    class Options(Normalise):
        c: NonNegative = Field(default=0.5, description="Radius; the paper takes 0.2 to 0.8.")

    def weights(self, gram: Array, preference: Array) -> Weights:
        mean = preference / preference.sum()
        with_mean = gram @ mean
        squared = max(float(mean @ with_mean), 0.0)
        radius = self.options.c * squared**0.5
        if radius == 0.0:
            return Weights(mean)

        def at(t: float) -> tuple[MinNorm, float]:
            moved = squared + t * (with_mean[:, None] + with_mean[None, :]) + t * t * gram
            point = min_norm_point(_psd_diagonal(moved))
            return point, t * max(float(point.alpha @ gram @ point.alpha), 0.0) ** 0.5

        low, high = 0.0, 1.0
        point, reach = at(high)
        while reach < radius and high < _LARGEST:
            low, high = high, 4.0 * high
            point, reach = at(high)
        if reach >= radius:
            for _ in range(60):
                t = 0.5 * (low + high)
                point, reach = at(t)
                low, high = (t, high) if reach < radius else (low, t)
                if high - low <= 1e-13 * high:
                    break
        return Weights(mean + high * point.alpha, point.gap, {"t": high})


def _psd_diagonal(matrix: Array) -> Array:
    """Rounding may leave a squared length a hair below zero."""
    np.fill_diagonal(matrix, np.maximum(np.diagonal(matrix), 0.0))
    return matrix
