import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from marble.errors import MarbleError
from marble.harmonise import RULES, GramRule, direction_cosines, get_rule

from ._asserts import assert_conflicts_with_none, unit_rows
from ._inputs import gradients, gram, jacobians

GRAM_RULES = [name for name, rule in RULES.items() if issubclass(rule, GramRule)]
NON_CONFLICTING = ["marble", "mgda", "upgrad", "dualproj", "nash"]
ORDINARY = ("random", "aligned", "conflicting", "duplicated", "row_scaled")


def coefficients(name, rows, preference=None, **options):
    rule = get_rule(name, **options)
    weights = rule(gram(rows), preference)
    return rule.coefficients(weights.alpha, np.linalg.norm(rows, axis=1))


def unit_direction(c, rows):
    direction = c @ rows
    return direction / np.linalg.norm(direction)


@pytest.mark.parametrize("name", NON_CONFLICTING)
@given(rows=jacobians(("random", "aligned", "conflicting", "duplicated"), max_k=16))
@settings(max_examples=60, deadline=None)
def test_conflicts_with_none(name, rows):
    assert_conflicts_with_none(coefficients(name, rows), rows)


@pytest.mark.parametrize("name", GRAM_RULES)
@given(rows=jacobians(("random", "aligned", "conflicting", "duplicated"), max_k=12), r=st.randoms())
@settings(max_examples=40, deadline=None)
def test_permutation_equivariant(name, rows, r):
    order = list(range(len(rows)))
    r.shuffle(order)
    permuted = coefficients(name, rows[order])
    expected = coefficients(name, rows)[order]
    np.testing.assert_allclose(permuted, expected, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize("name", [n for n in GRAM_RULES if n != "mgda"])
@given(rows=jacobians(("random", "conflicting"), max_k=12), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_direction_ignores_gradient_lengths(name, rows, seed):
    scale = 10.0 ** np.random.default_rng(seed).uniform(-6, 6, (len(rows), 1))
    found = unit_direction(coefficients(name, rows * scale), rows * scale)
    expected = unit_direction(coefficients(name, rows), rows)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", GRAM_RULES)
def test_one_reward_is_followed(name):
    rows = gradients("random", 1, np.random.default_rng(0))
    c = coefficients(name, rows)
    assert c.shape == (1,)
    assert direction_cosines(c, gram(rows))[0] == pytest.approx(1.0)


@pytest.mark.parametrize("name", GRAM_RULES)
def test_zero_gradients_get_no_weight(name):
    rows = gradients("random", 4, np.random.default_rng(0))
    with_zero = np.insert(rows, 2, 0.0, axis=0)
    c = coefficients(name, with_zero)
    assert c[2] == 0.0
    np.testing.assert_allclose(np.delete(c, 2), coefficients(name, rows), rtol=1e-9)
    assert not get_rule(name)(np.zeros((3, 3))).alpha.any()


@pytest.mark.parametrize("size", (1e-6, 1.0, 1e6))
def test_rules_without_gradients_share_among_those_that_have_one(size):
    """However short it is; who has none gets nothing."""
    rows = size * np.array([[0.3, 0.4], [0.0, 0.0], [0.0, 0.7]])
    np.testing.assert_array_equal(get_rule("uniform")(gram(rows)).alpha, [0.5, 0.0, 0.5])
    found = get_rule("fixed", weights=[3.0, 5.0, 1.0])(gram(rows)).alpha
    np.testing.assert_allclose(found, [0.75, 0.0, 0.25])


@pytest.mark.parametrize("name", GRAM_RULES)
def test_priority_raises_the_cosine(name):
    """Raising a reward's priority never costs it, and on the whole gains it, its cosine."""
    rng = np.random.default_rng(4)
    gains = []
    for _ in range(20):
        rows = gradients("random", 4, rng)
        plain = direction_cosines(coefficients(name, rows, np.ones(4)), gram(rows))[0]
        more = direction_cosines(coefficients(name, rows, np.array([3.0, 1, 1, 1])), gram(rows))[0]
        gains.append(more - plain)
    assert min(gains) > -1e-9
    assert np.mean(gains) > 0.05


def test_marble_is_normalise_solve_rescale():
    rows = gradients("row_scaled", 5, np.random.default_rng(2))
    units, norms = unit_rows(rows)
    alpha = get_rule("mgda")(gram(units)).alpha
    expected = norms.mean() * alpha @ units
    np.testing.assert_allclose(coefficients("marble", rows) @ rows, expected, rtol=1e-9)


@given(jacobians(("random", "conflicting"), min_k=2, max_k=8))
@settings(max_examples=40, deadline=None)
def test_marble_cosines_follow_priorities(rows):
    priorities = np.linspace(1.0, 2.0, len(rows))
    alpha = get_rule("marble")(gram(rows), priorities).alpha
    cos = direction_cosines(coefficients("marble", rows, priorities), gram(rows))
    ratio = cos / priorities
    np.testing.assert_allclose(ratio[alpha > 0], ratio.min(), atol=1e-9)


@pytest.mark.parametrize("family", ("random", "conflicting", "aligned"))
def test_projections_agree_with_nnls(family):
    """proj(x) onto {d·g_k ≥ 0} = x + Jᵀu, u = argmin_{u≥0} ‖Jᵀu + x‖."""
    rng = np.random.default_rng(5)
    for k in (2, 3, 7, 20):
        units, _ = unit_rows(gradients(family, k, rng))

        def project(x, units=units):
            return x + nnls(units.T, -x)[0] @ units

        mean = project(units.mean(axis=0))
        each = np.mean([project(row) for row in units], axis=0)
        np.testing.assert_allclose(coefficients("dualproj", units) @ units, mean, atol=1e-9)
        np.testing.assert_allclose(coefficients("upgrad", units) @ units, each, atol=1e-9)


def test_cagrad_is_the_best_worst_case_in_its_ball():
    rng = np.random.default_rng(6)
    for k in (2, 3, 5):
        units, _ = unit_rows(gradients("conflicting", k, rng))
        mean = units.mean(axis=0)
        radius = 0.5 * np.linalg.norm(mean)
        direction = coefficients("cagrad", units, c=0.5) @ units
        assert np.linalg.norm(direction - mean) == pytest.approx(radius, rel=1e-9)
        worst = (units @ direction).min()
        for _ in range(300):
            step = rng.standard_normal(k) @ units
            other = mean + radius * step / np.linalg.norm(step)
            near = direction + 1e-3 * radius * step / np.linalg.norm(step)
            near = mean + radius * (near - mean) / np.linalg.norm(near - mean)
            assert (units @ other).min() <= worst + 1e-9
            assert (units @ near).min() <= worst + 1e-9
    np.testing.assert_allclose(coefficients("cagrad", units, c=0.0), 1 / k)


@given(jacobians(("random", "aligned", "conflicting", "row_scaled"), max_k=32))
@settings(max_examples=50, deadline=None)
def test_nash_bargain(rows):
    power = np.linspace(1.0, 3.0, len(rows))
    alpha = get_rule("nash")(gram(rows), power).alpha
    units, _ = unit_rows(rows)
    shares = alpha * (gram(units) @ alpha + 1e-13 * alpha)  # with the documented ridge
    assert (alpha > 0).all()
    np.testing.assert_allclose(shares, power / power.mean(), rtol=1e-6)  # as for equal powers


def test_imtl_g_equal_projections():
    rows = gradients("row_scaled", 6, np.random.default_rng(8))
    cos = direction_cosines(coefficients("imtl_g", rows), gram(rows))
    np.testing.assert_allclose(cos, cos[0], atol=1e-9)


@pytest.mark.parametrize("preference", [None, np.array([3.0, 1.0, 1.0, 0.5])])
def test_aligned_is_the_mean_of_gradients_with_equal_singular_values(preference):
    """By the singular values of the gradients themselves; their length counts, too."""
    rows = gradients("row_scaled", 4, np.random.default_rng(5))
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    shares = np.full(4, 0.25) if preference is None else preference / preference.sum()
    found = coefficients("aligned", rows, preference, normalise=False) @ rows
    np.testing.assert_allclose(found, shares @ (values.min() * left @ right), rtol=1e-9)


def test_stationary_gradients_give_finite_weights():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])
    for name in GRAM_RULES:
        weights = get_rule(name)(gram(rows))
        assert np.isfinite(weights.alpha).all(), name
        assert weights.info.get("residual", 0.0) < 1e-2, name


@pytest.mark.parametrize("family", ("random", "aligned", "conflicting"))
@pytest.mark.parametrize("k", (1, 2, 5, 16))
def test_agrees_with_torchjd(family, k):
    torch = pytest.importorskip("torch")
    aggregation = pytest.importorskip("torchjd.aggregation")
    rows = gradients(family, k, np.random.default_rng(k))
    jacobian = torch.from_numpy(rows)
    exact = {"imtl_g": aggregation.IMTLG(), "aligned": aggregation.AlignedMTL()}
    if k <= 2:  # the order of projections does not matter yet
        exact["pcgrad"] = aggregation.PCGrad()
    for name, aggregator in exact.items():
        found = coefficients(name, rows, normalise=False) @ rows
        expected = aggregator(jacobian).numpy()
        found, expected = (v / np.linalg.norm(v) for v in (found, expected))
        np.testing.assert_allclose(found, expected, atol=1e-8, err_msg=name)
    # Frank–Wolfe with many steps converges to the same point, never to a shorter one.
    patient = aggregation.MGDA(epsilon=1e-12, max_iters=5_000)
    theirs = patient(jacobian).numpy()
    ours = coefficients("mgda", rows) @ rows
    assert np.linalg.norm(ours) <= np.linalg.norm(theirs) * (1 + 1e-9)
    np.testing.assert_allclose(ours, theirs, atol=2e-2 * np.linalg.norm(rows, axis=1).min())


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(MarbleError, match="did you mean upgrad"):
        get_rule("upgard")
    with pytest.raises(MarbleError, match=r"no option 'cc'.*'c'|no option 'cc'"):
        get_rule("cagrad", cc=1)
    with pytest.raises(MarbleError, match="It has none"):
        get_rule("uniform", c=1)


def test_bad_rule_options():
    for options in ({"c": -1.0}, {"c": float("nan")}):
        with pytest.raises(MarbleError, match="cagrad"):
            get_rule("cagrad", **options)
    for weights in ([-1.0, 2.0], [0.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(MarbleError, match="fixed"):
            get_rule("fixed", weights=weights)
