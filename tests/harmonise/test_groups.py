import numpy as np
import pytest

from marble.harmonise import Harmoniser, direction_cosines

from ._asserts import unit_rows
from ._inputs import gradients, gram

NAMES = tuple("abcde")


def direction(method, rows, names=NAMES, **options):
    c = Harmoniser(method, names, **options).solve(gram(rows)).coefficients_K
    d = c @ rows
    return d / np.linalg.norm(d)


@pytest.mark.parametrize("method", ("marble", "mgda", "upgrad", "nash", "cagrad"))
def test_singleton_groups_change_nothing(method):
    rows = gradients("conflicting", 5, np.random.default_rng(0))
    alone = {name: [name] for name in NAMES}
    np.testing.assert_allclose(
        direction(method, rows), direction(method, rows, groups=alone), atol=1e-8
    )


def test_group_direction_replaces_its_members():
    rows = gradients("random", 5, np.random.default_rng(1))
    units, _ = unit_rows(rows)
    inner = Harmoniser("marble", NAMES[:3]).solve(gram(units[:3])).coefficients_K @ units[:3]
    merged = np.vstack([inner / np.linalg.norm(inner), units[3:]])
    expected = direction("marble", merged, ("g", "d", "e"))
    found = direction("marble", units, groups={"g": NAMES[:3]})
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_duplicates_in_a_group_count_once_under_upgrad():
    """Without groups four copies outweigh the lone reward; in a group they count like one."""
    rng = np.random.default_rng(2)
    one, other = unit_rows(gradients("random", 2, rng))[0]
    rows = np.vstack([one, one, one, one, other])
    pair = np.vstack([one, other])
    expected = direction("upgrad", pair, ("a", "e"))
    grouped = direction("upgrad", rows, groups={"copies": NAMES[:4]})
    np.testing.assert_allclose(grouped, expected, atol=1e-9)
    assert np.abs(direction("upgrad", rows) - expected).max() > 1e-3


def test_group_that_cancels_takes_no_part_and_keeps_its_average():
    rows = np.array([[1.0, 0, 0], [-1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    balance = Harmoniser("marble", NAMES[:4], groups={"pair": ["a", "b"]})
    solution = balance.solve(gram(rows))
    assert solution.notes == ("Cancelled inside their group: a, b.",)
    np.testing.assert_array_equal(solution.alpha_K[:2], 0.25)
    np.testing.assert_allclose(solution.alpha_raw_K, [0.0, 0.0, 0.5, 0.5], atol=1e-12)


def test_silent_member_leaves_its_group():
    rows = gradients("random", 5, np.random.default_rng(3))
    groups = {"g": ["a", "b", "c"]}
    active = np.array([True, False, True, True, True])
    found = Harmoniser("marble", NAMES, groups=groups).solve(gram(rows), active)
    kept = rows[active]
    expected = Harmoniser("marble", tuple("acde"), groups={"g": ["a", "c"]}).solve(gram(kept))
    np.testing.assert_allclose(found.coefficients_K[active], expected.coefficients_K, atol=1e-12)
    assert found.coefficients_K[1] == 0.0


def test_priorities_between_groups():
    rows = gradients("random", 5, np.random.default_rng(4))
    groups = {"g": ["a", "b"]}
    plain = direction("marble", rows, groups=groups)
    more = direction("marble", rows, groups=groups, priorities={"a": 3.0, "b": 3.0})
    c = np.linalg.lstsq(rows.T, plain, rcond=None)[0], np.linalg.lstsq(rows.T, more, rcond=None)[0]
    before, after = (direction_cosines(coefficients, gram(rows))[:2].min() for coefficients in c)
    assert after > before + 0.05
