"""Properties that hold for whole families of gradients."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls


def unit_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    norms = np.linalg.norm(rows, axis=1)
    return rows / norms[:, None], norms


def nnls_min_norm(rows: np.ndarray) -> np.ndarray:
    """The min-norm point's lengths β (d = Σ β_k ĝ_k) by NNLS on [F; wᵀ]x ≈ [0; 1]."""
    units, norms = unit_rows(rows)
    w = norms.min() / norms
    system = np.vstack([units.T, w])
    target = np.zeros(len(system))
    target[-1] = 1.0
    x, _ = nnls(system, target, maxiter=100 * len(rows) + 100)
    return x / (w @ x)


def assert_on_simplex(alpha: np.ndarray) -> None:
    assert (alpha >= 0.0).all()
    np.testing.assert_allclose(alpha.sum(), 1.0, rtol=0, atol=1e-12)


def assert_conflicts_with_none(coefficients: np.ndarray, rows: np.ndarray, tol=1e-9) -> None:
    """cos(d, g_k) ≥ −tol with d formed from the gradients themselves."""
    units, norms = unit_rows(rows)
    direction = coefficients @ rows
    length = np.linalg.norm(direction)
    if length > 1e-7 * np.abs(coefficients) @ norms:
        assert (units @ direction / length).min() >= -tol
