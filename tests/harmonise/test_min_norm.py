import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.harmonise import min_norm_point

from ._asserts import assert_on_simplex, nnls_min_norm, unit_rows
from ._inputs import DETERMINED, FAMILIES, gradients, gram, jacobians

GAP = 1e-10


def frank_wolfe_gap(rows, alpha):
    """max_k (‖d‖² − d·g_k) / (‖g_k‖ Σ α_j‖g_j‖), from the gradients themselves."""
    norms = np.linalg.norm(rows, axis=1)
    direction = alpha @ rows
    return ((direction @ direction - rows @ direction) / norms).max() / (alpha @ norms)


@pytest.mark.parametrize("family", FAMILIES)
def test_gap_for_every_k(family):
    rng = np.random.default_rng(7)
    for k in range(1, 65):
        rows = gradients(family, k, rng)
        point = min_norm_point(gram(rows))
        assert_on_simplex(point.alpha)
        assert point.gap <= GAP
        assert frank_wolfe_gap(rows, point.alpha) <= GAP
        assert set(point.support) == set(np.flatnonzero(point.alpha))


@given(jacobians())
@settings(max_examples=200, deadline=None)
def test_gap(rows):
    point = min_norm_point(gram(rows))
    assert_on_simplex(point.alpha)
    assert frank_wolfe_gap(rows, point.alpha) <= GAP


@given(jacobians())
@settings(max_examples=150, deadline=None)
def test_length_agrees_with_nnls(rows):
    units, norms = unit_rows(rows)
    expected = nnls_min_norm(rows)
    found = min_norm_point(gram(rows)).alpha * norms / norms.min()
    scale = max(1.0, expected.sum()) ** 2
    difference = np.sum((found @ units) ** 2) - np.sum((expected @ units) ** 2)
    assert abs(difference) <= 1e-9 * scale


@given(jacobians(DETERMINED))
@settings(max_examples=200, deadline=None)
def test_point_agrees_with_nnls(rows):
    units, norms = unit_rows(rows)
    expected = nnls_min_norm(rows)
    found = min_norm_point(gram(rows)).alpha * norms / norms.min()
    distance = np.linalg.norm((found - expected) @ units)
    assert distance <= 1e-9 * max(1.0, expected.sum())


def test_no_conflict_on_ten_thousand_conflicting_grams():
    rng = np.random.default_rng(0)
    resolved = 0
    for _ in range(10_000):
        k = int(rng.integers(2, 17))
        rows = gradients("conflicting", k, rng)
        units, _ = unit_rows(rows)
        assert (units @ units.T).min() < 0.0  # they do conflict
        direction = min_norm_point(gram(units)).alpha @ units
        length = np.linalg.norm(direction)
        resolved += length > 1e-7
        if length > 1e-7:
            assert (units @ direction).min() / length >= -1e-9
    assert resolved == 10_000


@given(jacobians(("random", "aligned", "conflicting", "duplicated", "rank_one")), st.randoms())
@settings(max_examples=150, deadline=None)
def test_permutation_equivariant_with_ties(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    matrix = gram(rows)
    permuted = min_norm_point(matrix[np.ix_(order, order)]).alpha
    np.testing.assert_allclose(permuted, min_norm_point(matrix).alpha[order], atol=1e-9)


@given(jacobians(DETERMINED), st.randoms())
@settings(max_examples=100, deadline=None)
def test_permutation_leaves_the_point(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    units, norms = unit_rows(rows)
    matrix = gram(rows)
    alpha = min_norm_point(matrix).alpha
    permuted = np.empty_like(alpha)
    permuted[order] = min_norm_point(matrix[np.ix_(order, order)]).alpha
    lengths = (alpha - permuted) * norms / norms.min()
    total = max(1.0, float(alpha @ norms / norms.min()))
    assert np.linalg.norm(lengths @ units) <= 1e-9 * total


@given(jacobians(("random", "aligned", "conflicting", "duplicated")), st.floats(-6, 6))
@settings(max_examples=50, deadline=None)
def test_common_scale_changes_nothing(rows, exponent):
    scaled = min_norm_point(gram(rows) * 10.0 ** (2 * exponent)).alpha
    np.testing.assert_allclose(scaled, min_norm_point(gram(rows)).alpha, atol=1e-9)


def test_duplicates_share_equally():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((4, 9))
    once = min_norm_point(gram(rows)).alpha
    twice = min_norm_point(gram(np.vstack([rows, rows[:2], rows[:1]]))).alpha
    np.testing.assert_allclose(twice[[0, 4, 6]], once[0] / 3, atol=1e-12)
    np.testing.assert_allclose(twice[[1, 5]], once[1] / 2, atol=1e-12)
    np.testing.assert_allclose(twice[2:4], once[2:], atol=1e-12)


def test_ties_without_duplicates_are_symmetric():
    """Four points of a square around the origin: every weighting of a diagonal is optimal."""
    square = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    np.testing.assert_allclose(min_norm_point(gram(square)).alpha, 0.25, atol=1e-12)


def test_ties_at_the_boundary_of_the_simplex():
    """A fifth point off centre: the least-norm weights meet a sign constraint or stay inside."""
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [3.0, 0.0], [0.0, 4.0], [0.0, 0.5]])
    alpha = min_norm_point(gram(rows)).alpha
    assert np.linalg.norm(alpha @ rows) <= 1e-12
    reversed_alpha = min_norm_point(gram(rows[::-1])).alpha[::-1]
    np.testing.assert_allclose(alpha, reversed_alpha, atol=1e-10)


def test_known_answers():
    assert min_norm_point(np.array([[2.0]])).alpha == [1.0]
    np.testing.assert_allclose(min_norm_point(np.diag([1.0, 4.0])).alpha, [0.8, 0.2], atol=1e-15)
    # The long one lies behind the short one: only the short one counts.
    rows = np.array([[1.0, 0.0], [3.0, 1.0]])
    np.testing.assert_array_equal(min_norm_point(gram(rows)).alpha, [1.0, 0.0])


def test_zero_gradients_are_the_point():
    point = min_norm_point(np.diag([1.0, 0.0, 0.0]))
    np.testing.assert_array_equal(point.alpha, [0.0, 0.5, 0.5])
    assert point.gap == 0.0


@given(jacobians(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_noise_in_the_products_costs_no_more_than_itself(rows, seed):
    """G + E need not be positive semi-definite, and is then solved as the nearest that is.

    Cutting negative eigenvalues and restoring the diagonal each move an entry by at most ‖E‖₂, so
    the solved matrix is within e = max|E| + 2‖E‖₂ of G, and its optimum within 2e of optimal.
    """
    units, _ = unit_rows(rows)
    noise = 1e-6 * np.random.default_rng(seed).standard_normal((len(units), len(units)))
    error = noise + noise.T
    point = min_norm_point(gram(units) + error)
    assert_on_simplex(point.alpha)
    bound = 2.0 * (np.abs(error).max() + 2.0 * np.linalg.norm(error, 2))
    assert frank_wolfe_gap(units, point.alpha) <= bound


def test_indefinite_gram_does_not_stall():
    """Near-singular gradients with noisy products: within twice the largest error."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        units, _ = unit_rows(gradients("near_singular", int(rng.integers(2, 65)), rng))
        noise = 1e-6 * rng.standard_normal((len(units), len(units)))
        error = noise + noise.T
        alpha = min_norm_point(gram(units) + error).alpha
        assert frank_wolfe_gap(units, alpha) <= 2.0 * np.abs(error).max()
