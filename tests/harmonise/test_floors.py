import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.harmonise import Harmoniser, direction_cosines
from marble.harmonise._floors import keep_floors

from ._asserts import unit_rows
from ._inputs import gradients, gram, jacobians

NAN = float("nan")


@given(
    jacobians(("random", "aligned", "conflicting", "row_scaled"), min_k=2, max_k=10),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=80, deadline=None)
def test_kept_floors_hold(rows, seed):
    rng = np.random.default_rng(seed)
    k = len(rows)
    floors = np.where(rng.random(k) < 0.6, rng.uniform(0.0, 0.6, k), NAN)
    units, _ = unit_rows(rows)
    alpha = rng.dirichlet(np.ones(k))
    found = keep_floors(alpha, gram(units), floors, rng.integers(1, 4, k).astype(float))
    cos = direction_cosines(found.alpha, gram(units))
    held = ~np.isnan(found.floors)
    assert (cos[held] >= found.floors[held] - 1e-7).all()
    if np.array_equal(found.floors, floors, equal_nan=True):
        assert (found.alpha >= alpha - 1e-12).all()  # only ever adds along gradients with a floor
    assert not (held & np.isnan(floors)).any()


def test_a_floor_that_holds_changes_nothing():
    units, _ = unit_rows(gradients("aligned", 4, np.random.default_rng(0)))
    alpha = np.full(4, 0.25)
    found = keep_floors(alpha, gram(units), np.full(4, 0.1), np.ones(4))
    np.testing.assert_array_equal(found.alpha, alpha)


def test_zero_floor_is_the_nearest_direction():
    """With one floor at 0 the opposing component goes, and nothing else."""
    units = np.array([[1.0, 0.0], [-0.8, 0.6]])
    found = keep_floors(np.array([0.1, 0.9]), gram(units), np.array([0.0, NAN]), np.ones(2))
    direction = found.alpha @ units
    np.testing.assert_allclose(direction, [0.0, 0.54], atol=1e-12)


def test_positive_floor_is_met_exactly_and_no_more():
    units = np.array([[1.0, 0.0], [-0.8, 0.6]])
    found = keep_floors(np.array([0.1, 0.9]), gram(units), np.array([0.5, NAN]), np.ones(2))
    assert direction_cosines(found.alpha, gram(units))[0] == pytest.approx(0.5, abs=1e-9)


def test_contradictory_floors_relax_by_priority():
    """At 120° no direction has a cosine above 0.5 with both."""
    units = np.array([[1.0, 0.0], [-0.5, 0.75**0.5]])
    wanted = np.array([0.8, 0.8])
    found = keep_floors(np.array([0.5, 0.5]), gram(units), wanted, np.array([2.0, 1.0]))
    cos = direction_cosines(found.alpha, gram(units))
    assert found.floors[0] == 0.8
    # The more important floor leaves the other at most cos(120° − acos 0.8).
    best = np.cos(np.deg2rad(120) - np.arccos(0.8))
    assert found.floors[1] == pytest.approx(best, abs=1e-6)
    assert cos[1] == pytest.approx(best, abs=1e-6)
    together = keep_floors(np.array([0.5, 0.5]), gram(units), wanted, np.ones(2))
    np.testing.assert_allclose(together.floors, 0.5, atol=1e-6)


def test_opposed_floors_are_given_up_by_priority():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    names = ("a", "b", "c")
    floors = {"a": 0.3, "b": 0.0}
    balance = Harmoniser("marble", names, floors=floors, priorities={"a": 2.0})
    solution = balance.solve(gram(rows))
    assert any("that of b (0) is given up" in note for note in solution.notes)
    assert not any("that of a" in note for note in solution.notes)
    assert direction_cosines(solution.coefficients_K, gram(rows))[0] >= 0.3 - 1e-7


def test_harmoniser_keeps_floors_under_any_rule():
    rng = np.random.default_rng(9)
    for method in ("marble", "mgda", "upgrad", "pcgrad", "imtl_g", "aligned", "cagrad"):
        rows = gradients("random", 5, rng)
        balance = Harmoniser(method, tuple("abcde"), floors={"c": 0.6})
        solution = balance.solve(gram(rows))
        assert solution.notes == ()
        assert direction_cosines(solution.coefficients_K, gram(rows))[2] >= 0.6 - 1e-7


def test_floor_of_a_silent_reward_waits():
    balance = Harmoniser("marble", ("a", "b"), floors={"b": 0.9})
    solution = balance.solve(np.diag([1.0, 0.0]))
    np.testing.assert_array_equal(solution.coefficients_K, [1.0, 0.0])
    assert solution.notes == ("Silent: b.",)
