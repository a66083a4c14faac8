import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from marble.harmonise._active_set import nonneg_qp


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=150, deadline=None)
def test_agrees_with_nnls(k, rows, seed, warm):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((rows, k)), rng.standard_normal(rows)
    start = rng.standard_normal(k) if warm else None
    found = nonneg_qp(a.T @ a, a.T @ b, start)
    expected, residual = nnls(a, b)
    assert (found >= 0.0).all()
    np.testing.assert_allclose(np.linalg.norm(a @ found - b), residual, atol=1e-9)
    np.testing.assert_allclose(a @ found, a @ expected, atol=1e-7)


def test_nothing_to_gain():
    np.testing.assert_array_equal(nonneg_qp(np.eye(3), -np.ones(3)), 0.0)


def test_near_duplicates_are_exchanged():
    """Two columns that differ below the precision of Q: the better one must take over."""
    a = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    near = np.column_stack([a[:, 0], a[:, 0] + 1e-9 * a[:, 1]])
    b = np.array([1.0, 1e-1, 0.0])
    found = nonneg_qp(near.T @ near, near.T @ b, np.array([1.0, 0.0]))
    slope = near.T @ b - near.T @ near @ found
    assert slope.max() <= 1e-14
