"""Numbers worked out by hand, and brute force where that is possible."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from marble.evaluation import (
    composite,
    conflicts,
    gain_interval,
    harmony,
    hypervolume,
    joint_rates,
    mean_interval,
    pareto_front,
    relative_gains,
    summarise,
    wins,
    worst_gain,
)

NAN = np.nan


# ---- intervals ------------------------------------------------------------------------------


def test_interval_of_a_mean_matches_the_normal_one():
    values = np.random.default_rng(0).normal(2.0, 3.0, size=900)
    interval = mean_interval(values)
    half = 1.96 * values.std() / 30
    assert interval.mean == pytest.approx(values.mean()) and interval.n == 900
    assert interval.lo == pytest.approx(values.mean() - half, abs=0.02)
    assert interval.hi == pytest.approx(values.mean() + half, abs=0.02)
    assert mean_interval(values) == interval != mean_interval(values, seed=1)


def test_coverage_of_the_interval():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        interval = mean_interval(rng.normal(size=60), resamples=500, seed=trial)
        hits += interval.lo <= 0 <= interval.hi
    assert 0.90 <= hits / 200 <= 0.99


def test_pictures_of_one_prompt_stay_together():
    """Ten equal copies of a value are one observation, not ten."""
    values = np.random.default_rng(2).normal(size=30)
    single = mean_interval(values)
    copied = mean_interval(np.repeat(values, 10), np.repeat(np.arange(30), 10).tolist())
    naive = mean_interval(np.repeat(values, 10))
    assert (copied.lo, copied.hi) == pytest.approx((single.lo, single.hi))
    assert naive.hi - naive.lo < 0.5 * (copied.hi - copied.lo)


def test_inapplicable_values_are_left_out():
    assert mean_interval([1.0, NAN, 3.0]).mean == 2.0 and mean_interval([1.0, NAN, 3.0]).n == 2
    empty = mean_interval([NAN, NAN])
    assert empty.n == 0 and np.isnan(empty.mean)
    assert empty.record() == {"mean": None, "lo": None, "hi": None, "n": 0}
    assert not empty.above_zero and not empty.below_zero


def test_paired_gain_ignores_what_prompts_have_in_common():
    rng = np.random.default_rng(3)
    before = rng.normal(0, 10, size=50)
    after = before + 0.1 + rng.normal(0, 0.05, size=50)
    assert gain_interval(after, before).above_zero
    assert gain_interval(before, after).below_zero
    with pytest.raises(ValueError, match="not the same pictures"):
        gain_interval(after, before[:3])
    with pytest.raises(ValueError, match="clusters"):
        mean_interval(after, ["a"])


# ---- tables ---------------------------------------------------------------------------------


def test_composite_by_hand():
    table = [[1.0, 10.0], [2.0, 30.0], [3.0, 20.0]]
    z = np.sqrt(1.5)  # (3 − 2) / population std of (1, 2, 3)
    assert composite(table) == pytest.approx([-z, z / 2, z / 2])


def test_composite_leaves_out_what_says_nothing():
    table = np.array([[1.0, 5.0, NAN], [3.0, 5.0, 2.0]])
    assert composite(table) == pytest.approx([-1, 1])
    assert composite(np.ones((3, 2))) == pytest.approx([0, 0, 0])
    assert composite(np.ones((1, 2))) == pytest.approx([0])


def test_joint_rates_by_hand():
    before = np.zeros((2, 6))
    before[1, 3:5] = NAN
    before[:, 5] = NAN
    after = np.array([[1, 1, -1, 1, 0, NAN], [1, -1, -1, NAN, NAN, NAN]])
    # beats on both · mixed · loses on both · beats on its only reward · ties · nothing applies
    joint = joint_rates(after, before)
    assert (joint.domination, joint.collapse, joint.n) == (2 / 5, 1 / 5, 5)
    assert np.isnan(joint_rates(after[:, 5:], before[:, 5:]).domination)


def test_wins_by_hand():
    (first, second) = wins([[2, 0, 1, NAN], [NAN] * 4], [[1, 1, 1, 1], [0, 0, 0, 0]])
    assert (first.won, first.tied, first.lost, first.n) == pytest.approx((1 / 3, 1 / 3, 1 / 3, 3))
    assert second.n == 0 and np.isnan(second.won)


def test_relative_gains_by_hand():
    before = np.array([[0.0, 2.0, 0.0, 2.0], [5.0, 5.0, 5.0, 5.0], [1.0, 3.0, NAN, NAN]])
    after = before + np.array([[0.5], [0.0], [-2.0]])
    assert relative_gains(after, before) == pytest.approx([0.5, 0.0, -2.0])
    assert worst_gain(after, before) == (2, -2.0)
    moved = relative_gains(before + 1, before)
    assert np.isnan(moved[1])  # no spread to measure the move by
    with pytest.raises(ValueError, match="alike"):
        relative_gains(after[:2], before)


@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=20),
    st.floats(-3, 3),
    st.floats(0.01, 100),
)
def test_relative_gains_are_in_units_of_before(values, moved, scale):
    before = np.array([values])
    assume(before.std() > 1e-3)
    after = before + moved * before.std()
    np.testing.assert_allclose(relative_gains(after * scale, before * scale), moved, atol=1e-6)


def test_summary_by_source():
    scores = {"ocr": np.array([1.0, 0.0, NAN, NAN]), "clip": np.array([1.0, 2.0, 3.0, 6.0])}
    summary = summarise(scores, ["a", "a", "b", "b"], ["p", "q", "r", "r"])
    assert summary["ocr"]["by_source"] == {"a": 0.5} and summary["ocr"]["n"] == 2
    assert summary["clip"]["by_source"] == {"a": 1.5, "b": 4.5}
    assert summary["clip"]["mean"] == 3.0 and summary["clip"]["lo"] < 3 < summary["clip"]["hi"]
    with pytest.raises(ValueError, match="2 scores for 4 pictures"):
        summarise({"x": np.zeros(2)}, ["a"] * 4, ["p"] * 4)


# ---- Pareto ---------------------------------------------------------------------------------


def test_front_against_the_definition():
    points = np.random.default_rng(4).integers(0, 4, size=(40, 3)).astype(float)
    for i, on_front in enumerate(pareto_front(points)):
        beaten = any((q >= points[i]).all() and (q > points[i]).any() for q in points)
        assert on_front == (not beaten)


def test_hypervolume_by_hand():
    assert hypervolume([[2, 3]], [0, 0]).value == 6
    assert hypervolume([[2, 1], [1, 2]], [0, 0]).value == 3
    assert hypervolume([[2, 1], [1, 2], [1, 1]], [0, 0]).value == 3
    assert hypervolume([[2, 1]], [1, 1]).value == 0  # not above the reference on every axis
    assert hypervolume([[3.0]], [1.0]).value == 2


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_hypervolume_against_counting_cells(k):
    points = np.random.default_rng(k).integers(-1, 4, size=(9, k))
    cells = itertools.product(range(4), repeat=k)
    count = sum(any(all(c < p for c, p in zip(cell, point)) for point in points) for cell in cells)
    volume = hypervolume(points, np.zeros(k))
    assert volume.value == pytest.approx(count) and volume.error == 0


def test_sampled_hypervolume_states_its_error():
    rng = np.random.default_rng(6)
    points = rng.random((6, 5))
    exact = hypervolume(points, np.zeros(5)).value
    # A sixth axis of height 1 for all keeps the volume and forces sampling.
    sampled = hypervolume(np.c_[points, np.ones(6)], np.zeros(6))
    assert 0 < sampled.error < 0.01 * exact
    assert abs(sampled.value - exact) < 4 * sampled.error
    assert sampled == hypervolume(np.c_[points, np.ones(6)], np.zeros(6))


def test_bad_points():
    with pytest.raises(ValueError, match="finite"):
        hypervolume([[1, NAN]], [0, 0])
    with pytest.raises(ValueError, match="does not fit"):
        hypervolume([[1, 1]], [0])


# ---- harmony --------------------------------------------------------------------------------


def test_harmony_by_hand():
    rows = [
        {"step": 0, "harmony/min": -0.2, "harmony/mean": 0.2, "harmony/var": 0.1},
        {"step": 1},
        {"step": 2, "harmony/min": 0.4, "harmony/mean": 0.6, "harmony/var": None},
        {"step": 3, "harmony/min": None, "harmony/mean": 9.0},
        {"step": 4, "harmony/min": "", "harmony/mean": [1]},  # a damaged line
    ]
    result = harmony(rows)
    assert (result.min, result.mean, result.var) == pytest.approx((0.1, 0.4, 0.1))
    assert (result.conflict_rate, result.n) == (0.5, 2)
    nothing = harmony(rows, "harmony_applied")
    assert nothing.n == 0 and nothing.record()["min"] is None
    assert harmony([]).n == 0
    with pytest.raises(ValueError, match="kind must be"):
        harmony(rows, "loss")


def test_pairwise_conflicts():
    rows = [{"cos/a|b": 0.5, "cos/a|c": -0.1}, {"cos/a|b": -0.5, "loss": 3.0}]
    assert conflicts(rows) == {("a", "b"): 0.0, ("a", "c"): -0.1}
