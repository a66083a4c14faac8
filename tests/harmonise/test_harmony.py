import numpy as np
import pytest
from hypothesis import given, settings

from marble.harmonise import (
    direction_cosines,
    harmony,
    heldout_cosines,
)

from ._asserts import unit_rows
from ._inputs import gradients, gram, jacobians


@given(jacobians(("random", "conflicting", "row_scaled"), max_k=10))
@settings(max_examples=50, deadline=None)
def test_cosines_are_those_of_the_gradients(rows):
    units, norms = unit_rows(rows)
    c = 1.0 / norms
    direction = c @ rows
    expected = units @ direction / np.linalg.norm(direction)
    np.testing.assert_allclose(direction_cosines(c, gram(rows)), expected, atol=1e-9)


def test_heldout_uses_the_other_half():
    rng = np.random.default_rng(0)
    first = gradients("random", 4, rng)
    second = rng.standard_normal(first.shape)
    c = rng.random(4)
    direction = c @ first
    units, norms = unit_rows(second)
    expected = units @ direction / np.linalg.norm(direction)
    found = heldout_cosines(c, gram(first), first @ second.T, norms)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_summary_of_active_rewards():
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [-1.0, 0.0]])
    c = np.array([1.0, 0.5, 0.0, 0.0])
    found = harmony(c, gram(rows), np.array([True, True, True, False]))
    half = 0.5**0.5
    assert found == pytest.approx({"min": half, "mean": half, "var": 0.0, "conflict": 0.0})
    everyone = harmony(c, gram(rows))
    assert everyone["min"] == pytest.approx(-half)
    assert everyone["conflict"] == 1.0


def test_direction_that_cancels_has_no_angle():
    rows = np.array([[1.0, 0.3], [-1.0, -0.3]])
    assert not direction_cosines(np.array([0.5, 0.5]), gram(rows)).any()
    nothing = {"min": 0.0, "mean": 0.0, "var": 0.0, "conflict": 0.0}
    assert harmony(np.zeros(2), np.zeros((2, 2))) == nothing
