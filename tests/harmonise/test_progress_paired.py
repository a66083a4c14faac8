"""Progress by pairs and redundancy: weight ∝ preference · redundancy · trust · exp(−β p̃)."""

import json

import numpy as np
import pytest

from marble.harmonise import Harmoniser, gate
from marble.harmonise._paired import PairedScores, shrunk
from marble.harmonise._redundancy import Redundancy

from .test_paired import drawn as scores
from .test_redundancy import drawn as advantages

NAMES = ("a", "b", "c", "d", "e")
K = len(NAMES)
OPTIONS = {"beta": 3.0, "window": 2, "redundancy": 2.0}


def seen(balance, now, base):
    """(progress, trust) as logged."""
    found = balance.observe_pairs(now, base)
    return found["progress"], found["progress_trust"]


def harmoniser(names=NAMES, **options):
    return Harmoniser("progress", names, options={**OPTIONS, **options})


def observe(balance, means, rows):
    balance.observe(means, np.ones(len(means)), None, rows)


def weights(balance):
    return balance.cached().coefficients_K


def test_the_weight_by_its_factors():
    priorities = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 1.0, "e": 3.0}
    balance = Harmoniser("progress", NAMES, options=OPTIONS, priorities=priorities)
    follows, pairs = Redundancy(K, 2.0), PairedScores(2)
    for epoch, rows in enumerate(advantages(1, steps=6)):
        now, base = scores(epoch, gaps=0.1)
        found = tuple(balance.observe_pairs(now, base).values())
        observe(balance, np.zeros(K), rows)
        follows.observe(rows)
        pairs.add(now, base)
        measured = pairs.measured()
        np.testing.assert_array_equal(found[0], measured.p_K)
        trust = measured.trust_K * follows.support_K
        factors = list(priorities.values()) * follows.weight_K * np.maximum(trust, 0.05)
        expected = factors * np.exp(-3.0 * shrunk(measured.p_K, measured.error_K, trust))
        np.testing.assert_allclose(weights(balance), expected / expected.sum(), rtol=1e-12)
    assert measured.trust_K.min() < 0.05 < measured.trust_K.max()  # the floor was reached


def test_once_there_are_pairs_batch_means_do_not_count():
    balance = harmoniser(redundancy=0.0)
    for t in range(20):
        observe(balance, np.arange(K) * 0.1 * t, None)
    by_means = weights(balance)
    assert by_means[0] > 0.5  # it lags
    balance.observe_pairs(*scores(2))
    by_pairs = weights(balance)
    fresh = harmoniser(redundancy=0.0)
    fresh.observe_pairs(*scores(2))
    np.testing.assert_array_equal(by_pairs, weights(fresh))
    assert np.abs(by_pairs - by_means).max() > 0.1


def test_without_redundancy_agreement_does_not_count():
    plain, sharing = harmoniser(redundancy=0.0), harmoniser()
    same = np.tile(np.random.default_rng(0).standard_normal(20), (K, 1))
    same[0] = np.random.default_rng(1).standard_normal(20)
    for balance in (plain, sharing):
        observe(balance, np.zeros(K), same)
    np.testing.assert_array_equal(weights(plain), 1 / K)
    assert weights(sharing)[0] == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize("pairs", [False, True])
def test_copies_weigh_as_two(pairs):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2, 40))
    base = rng.standard_normal((2, 4000))
    now = base + np.array([[0.3], [0.1]])

    def found(index):
        balance = harmoniser([f"r{i}" for i in range(len(index))], redundancy=16.0)
        observe(balance, np.zeros(len(index)), rows[index])
        if pairs:
            balance.observe_pairs(now[index], base[index])
        return weights(balance)

    pair, many = found([0, 0, 1]), found([0] * 5 + [1])
    np.testing.assert_allclose(many[:-1], many[0])
    np.testing.assert_allclose([many[:-1].sum(), many[-1]], [2 * pair[0], pair[-1]], rtol=1e-2)
    if pairs:
        assert pair[-1] > 1.5 * pair[0]
    else:
        np.testing.assert_allclose(pair, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("pairs", [False, True])
def test_one_that_all_oppose_gets_little_however_far_it_falls(pairs):
    rng = np.random.default_rng(0)
    rows, base = rng.standard_normal((2, 40)), rng.standard_normal((2, 4000))
    index, sign = [0, 0, 0, 1, 0], np.array([[1.0], [1], [1], [1], [-1]])
    gain = np.array([[0.8], [0.8], [0.8], [0.8], [-0.8]])
    balance = harmoniser(("a", "b", "c", "other", "opponent"), redundancy=4.0, warmup=1)
    for t in range(20):
        observe(balance, 0.04 * t * sign[:, 0], sign * rows[index])
    if pairs:
        _, trust = seen(balance, sign * base[index] + gain, sign * base[index])
        np.testing.assert_allclose(trust, [1, 1, 1, 1, 0], atol=1e-9)
    found = weights(balance)
    assert found[-1] < 0.02
    np.testing.assert_allclose(found[:4] / found[3], [2 / 3, 2 / 3, 2 / 3, 1], rtol=0.02)


def test_noise_keeps_a_twentieth_of_its_weight():
    rng = np.random.default_rng(5)
    base = rng.standard_normal((2, 20000))
    now = np.stack([base[0], rng.standard_normal(20000)])
    balance = harmoniser(("real", "noise"), redundancy=0.0)
    _, trust = seen(balance, now, base)
    assert trust[1] < 0.05
    np.testing.assert_allclose(weights(balance), [20 / 21, 1 / 21])


def test_a_hybrid_takes_its_progress_from_pairs():
    alone = {**OPTIONS, "redundancy": 0.0}
    balance = Harmoniser("marble", NAMES, hybrid="gate", progress=alone)
    gram = np.full((K, K), 0.9)
    gram[-1] = gram[:, -1] = 0.0
    np.fill_diagonal(gram, 1.0)  # the last stands alone, which α favours
    alpha = balance.solve(gram).coefficients_K
    assert alpha[-1] > 0.4
    base = scores(4, gaps=0.0)[1]
    balance.observe_pairs(base + 0.2 * np.arange(K)[:, None], base)  # and it is furthest ahead
    found, follows = balance.solve(gram).coefficients_K, balance.gated.progress
    p = 0.2 * np.arange(K) / base.std(1)
    p = shrunk(p, np.full(K, 1 / base.shape[1]), np.ones(K))
    open_ = gate(alpha, p, 3.0)
    expected = open_ * alpha + (1 - open_) * np.exp(-3.0 * p) / np.exp(-3.0 * p).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert follows.pairs and found[-1] < 0.2


@pytest.mark.parametrize("method", ["progress", "marble"])
def test_state_survives_json(method):
    def make():
        if method == "progress":
            return harmoniser()
        return Harmoniser("marble", NAMES, hybrid="gate", progress=OPTIONS)

    def go(balance, epochs):
        rows = advantages(3, steps=9)
        for epoch in epochs:
            balance.observe_pairs(*scores(epoch))
            observe(balance, np.sin(np.arange(K) + epoch), rows[epoch])
        return balance.cached().coefficients_K

    whole, half, resumed = make(), make(), make()
    expected = go(whole, range(9))
    go(half, range(4))
    go(resumed, range(2))  # forgotten by what is loaded
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict(), allow_nan=False)))
    assert resumed.state_dict() == half.state_dict()
    np.testing.assert_array_equal(resumed.cached().coefficients_K, half.cached().coefficients_K)
    np.testing.assert_array_equal(go(resumed, range(4, 9)), expected)
    assert resumed.state_dict() == whole.state_dict()


def test_a_state_of_an_earlier_version_is_read():
    balance = harmoniser()
    balance.observe_pairs(*scores(3))
    state = json.loads(json.dumps(balance.state_dict()))
    state["rule"]["twins"] = state["rule"].pop("pairs")
    resumed = harmoniser()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == balance.state_dict()
