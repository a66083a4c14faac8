import json

import numpy as np
import pytest

from marble.harmonise import RULES, GramRule, Harmoniser, Schedule, get_rule, min_norm_point

from ._asserts import unit_rows
from ._inputs import gradients, gram

NAMES = ("a", "b", "c", "d")
GRAM_METHODS = [name for name, rule in RULES.items() if issubclass(rule, GramRule)]


@pytest.fixture
def rows():
    return gradients("row_scaled", 4, np.random.default_rng(11)) * 1e-3


def test_full_step_is_the_published_one(rows):
    solution = Harmoniser("marble", NAMES).solve(gram(rows))
    units, norms = unit_rows(rows)
    alpha = min_norm_point(gram(units)).alpha
    np.testing.assert_allclose(solution.alpha_raw_K, alpha, atol=1e-9)
    np.testing.assert_allclose(
        solution.coefficients_K @ rows, norms.mean() * alpha @ units, rtol=1e-7
    )
    np.testing.assert_allclose(solution.norms_K, norms)
    np.testing.assert_allclose(solution.cos_KK, units @ units.T, atol=1e-12)
    assert solution.gap <= 1e-10
    assert solution.refreshed
    assert solution.harmony["conflict"] == 0.0


def test_moving_average_and_amortised_coefficients(rows):
    paper = Harmoniser("marble-paper", NAMES, rho=0.7)
    normalised = Harmoniser("marble", NAMES, rho=0.7, amortise="normalised")
    ema, uniform = None, np.full(4, 0.25)
    for seed in range(5):
        step_rows = gradients("random", 4, np.random.default_rng(seed))
        solution = paper.solve(gram(step_rows))
        uniform = 0.7 * uniform + 0.3 * normalised.solve(gram(step_rows)).alpha_raw_K
        raw = solution.alpha_raw_K
        ema = raw if ema is None else 0.7 * ema + 0.3 * raw  # the first is taken whole
        np.testing.assert_allclose(solution.alpha_K, ema, atol=1e-12)
    np.testing.assert_allclose(paper.cached().coefficients_K, ema, atol=1e-12)
    norms = np.linalg.norm(step_rows, axis=1)
    np.testing.assert_allclose(
        normalised.cached().coefficients_K, uniform * norms.mean() / norms, atol=1e-12
    )
    assert paper.cached().alpha_K.sum() == pytest.approx(1.0, abs=1e-12)


def test_refresh_with_ema_applies_the_average(rows):
    balance = Harmoniser("marble", NAMES, refresh_with="ema")
    solution = balance.solve(gram(rows))
    expected = get_rule("marble").coefficients(solution.alpha_K, solution.norms_K)
    np.testing.assert_allclose(solution.coefficients_K, expected)


def test_schedule():
    balance = Harmoniser("marble", NAMES, n=10, consolidate=15, total_steps=100)
    refreshes = [step for step in range(100) if balance.is_refresh(step)]
    assert refreshes == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert Harmoniser("marble", NAMES, n=1).is_refresh(7)
    uniform = Harmoniser("uniform", NAMES)
    assert not uniform.is_refresh(0)
    assert not uniform.needs_gram


def test_probe_counts():
    assert Schedule(probe=1.0).probe_count(7) == 7
    assert Schedule(probe=0.25).probe_count(8) == 2
    assert Schedule(probe=0.25).probe_count(9) == 3
    assert Schedule(probe=0.01).probe_count(3) == 1
    assert Harmoniser("marble", NAMES, probe=0.5).probe_count(4) == 2


def test_consolidation_is_uniform(rows):
    balance = Harmoniser("marble", NAMES, consolidate=5, total_steps=20)
    balance.solve(gram(rows))
    assert np.ptp(balance.cached(step=14).coefficients_K) > 0.01
    late = balance.cached(step=15)
    np.testing.assert_array_equal(late.coefficients_K, 0.25)
    assert "Consolidation" in late.notes[0]


def test_silent_reward_leaves_the_solve_and_keeps_its_average(rows):
    balance = Harmoniser("marble", NAMES)
    before = balance.solve(gram(rows)).alpha_K
    active = np.array([True, True, False, True])
    solution = balance.solve(gram(rows), active)
    assert solution.alpha_K[2] == pytest.approx(before[2], abs=1e-15)
    assert solution.alpha_K.sum() == pytest.approx(1.0, abs=1e-12)
    assert solution.coefficients_K[2] == 0.0
    assert solution.notes == ("Silent: c.",)
    others = Harmoniser("marble", ("a", "b", "d")).solve(gram(rows[active]))
    np.testing.assert_allclose(solution.alpha_raw_K[active], others.alpha_raw_K)
    np.testing.assert_allclose(solution.coefficients_K[active], others.coefficients_K)


def test_zero_gradient_is_silent(rows):
    rows[1] = 0.0
    solution = Harmoniser("marble", NAMES).solve(gram(rows))
    assert solution.notes == ("Silent: b.",)
    assert list(solution.active_K) == [True, False, True, True]


@pytest.mark.parametrize("method", ["marble", "uniform", "upgrad"])
def test_all_silent_is_no_step_and_loses_nothing(method, rows):
    balance = Harmoniser(method, NAMES)
    balance.solve(gram(rows))
    before = balance.state_dict()
    solution = balance.solve(gram(rows), np.zeros(4, dtype=bool))
    assert not solution.coefficients_K.any()
    assert "All rewards are silent" in solution.notes[-1]
    assert balance.state_dict() == before
    assert not balance.solve(np.zeros((4, 4))).coefficients_K.any()
    assert not balance.cached(active_K=np.zeros(4, dtype=bool)).coefficients_K.any()


def test_cached_hands_the_weight_of_silent_rewards_on():
    balance = Harmoniser("fixed", NAMES, options={"weights": {"a": 1, "b": 2, "c": 3, "d": 4}})
    np.testing.assert_allclose(balance.cached().coefficients_K, [0.1, 0.2, 0.3, 0.4])
    active = np.array([True, True, True, False])
    np.testing.assert_allclose(
        balance.cached(active_K=active).coefficients_K, [1 / 6, 1 / 3, 1 / 2, 0]
    )
    alone = np.array([True, False, False, False])
    zero = Harmoniser("fixed", NAMES, options={"weights": [0, 1, 1, 1]})
    np.testing.assert_array_equal(zero.cached(active_K=alone).coefficients_K, [1, 0, 0, 0])


def test_average_revives_where_silent_rewards_held_everything():
    balance = Harmoniser("marble", ("a", "b"), rho=0.0)
    balance.solve(np.diag([1.0, 1.0]), np.array([True, False]))
    state = balance.state_dict() | {"ema": [1.0, 0.0]}
    balance.load_state_dict(state)
    solution = balance.solve(np.diag([1.0, 1.0]), np.array([False, True]))
    np.testing.assert_allclose(solution.alpha_K, [0.5, 0.5])


def test_before_the_first_solve_cached_is_uniform():
    for amortise in ("paper", "normalised"):
        found = Harmoniser("marble", NAMES, amortise=amortise).cached()
        np.testing.assert_array_equal(found.coefficients_K, 0.25)
        assert np.isnan(found.norms_K).all()


def test_norm_of_a_reward_not_seen_yet_is_the_mean():
    balance = Harmoniser("marble", ("a", "b", "c"), amortise="normalised", rho=0.0)
    balance.solve(np.diag([1.0, 9.0, 4.0]), np.array([True, True, False]))
    c = balance.cached().coefficients_K
    assert c[2] == pytest.approx(1 / 3)


def test_one_reward():
    for method in GRAM_METHODS:
        solution = Harmoniser(method, ("only",)).solve(np.array([[4.0]]))
        np.testing.assert_allclose(solution.coefficients_K, [1.0], err_msg=method)
        np.testing.assert_allclose(solution.alpha_K, [1.0])


def test_duplicated_rewards_share(rows):
    doubled = np.vstack([rows[:3], rows[2]])
    for method in GRAM_METHODS:
        c = Harmoniser(method, NAMES).solve(gram(doubled)).coefficients_K
        assert c[2] == pytest.approx(c[3], rel=1e-6), method


def test_ridge_calms_near_duplicates():
    rng = np.random.default_rng(0)
    base = gradients("conflicting", 3, rng)
    plain, calm = [], []
    for _ in range(30):
        rows = np.vstack([base, base[2] + 0.01 * rng.standard_normal(base.shape[1])])
        plain.append(Harmoniser("marble", NAMES).solve(gram(rows)).alpha_raw_K)
        calm.append(Harmoniser("marble", NAMES, ridge=0.05).solve(gram(rows)).alpha_raw_K)
    assert np.std(calm, axis=0)[2:].max() < 0.3 * np.std(plain, axis=0)[2:].max()


@pytest.mark.parametrize("method", sorted(RULES))
def test_state_round_trip_through_json_is_exact(method):
    options = {"weights": [1, 2, 3, 4]} if "weights" in RULES[method].Options.model_fields else {}

    def fresh():
        return Harmoniser(method, NAMES, amortise="normalised", options=options)

    def run(balance, seeds):
        for seed in seeds:
            rng = np.random.default_rng(seed)
            balance.observe(rng.random(4), rng.random(4))
            last = balance.solve(gram(gradients("random", 4, rng)), rng.random(4) < 0.8)
        return last

    whole, half, resumed = fresh(), fresh(), fresh()
    expected = run(whole, range(12))
    run(half, range(7))
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    found = run(resumed, range(7, 12))
    np.testing.assert_array_equal(found.coefficients_K, expected.coefficients_K)
    np.testing.assert_array_equal(resumed.cached().coefficients_K, whole.cached().coefficients_K)
    assert resumed.state_dict() == whole.state_dict()


def test_solution_does_not_alias_the_state(rows):
    balance = Harmoniser("marble", NAMES)
    solution = balance.solve(gram(rows))
    before = balance.state_dict()
    for array in (solution.alpha_K, solution.alpha_raw_K, solution.norms_K):
        array[:] = 7.0
    assert balance.state_dict() == before


def test_only_the_first_average_is_whole_also_where_a_reward_was_silent(rows):
    """marble-paper: ᾱ begins with α* once, not again when the last reward has its first say."""
    balance = Harmoniser("marble-paper", NAMES, rho=0.7)
    first = balance.solve(gram(rows), np.array([True, True, True, False]))
    np.testing.assert_allclose(first.alpha_K, [*(0.75 * first.alpha_raw_K[:3]), 0.25])
    second = balance.solve(gram(rows[::-1] * [[1.0], [2.0], [0.5], [3.0]]))
    expected = 0.7 * first.alpha_K + 0.3 * second.alpha_raw_K
    np.testing.assert_allclose(second.alpha_K, expected, atol=1e-12)


class Deaf(RULES["uniform"]):
    """Would fail if it were shown anything."""

    name = "deaf"

    def observe(self, *statistics):
        raise AssertionError


class Listening(Deaf):
    observes = True


def test_a_rule_is_shown_statistics_only_if_it_says_so():
    shown = np.zeros(4), np.ones(4)
    Harmoniser(f"{__name__}:Deaf", NAMES).observe(*shown)
    with pytest.raises(AssertionError):
        Harmoniser(f"{__name__}:Listening", NAMES).observe(*shown)
