"""Estimates from synthetic gradients whose signal and noise are known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.geometry import signal as sig
from marble.geometry.products import all_products, products


def gradients(true_RT, noise_R, batches, seed=0):
    """One-batch gradients: the true one and noise of the given squared norm."""
    rng = np.random.default_rng(seed)
    rows, total = true_RT.shape
    noise = rng.normal(size=(batches, rows, total)) * np.sqrt(np.asarray(noise_R) / total)[:, None]
    return torch.from_numpy(true_RT + noise)


def everyone(g):
    return np.ones(g.shape[:2], dtype=bool)


TRUE = np.zeros((3, 200))
TRUE[0, 0], TRUE[1, :2], TRUE[2, 1] = 1.0, (0.6, 0.8), -2.0
"""Norms 1, 1, 2; cosines 0.6, 0, −0.8."""


def test_products_are_those_of_all_rows_with_all():
    rng = np.random.default_rng(0)
    g, weight = torch.from_numpy(rng.normal(size=(3, 2, 50))), torch.from_numpy(rng.random(50))
    expected = np.einsum("ait,bjt,t->aibj", g, g, weight)
    assert np.allclose(products(g, weight), expected)
    metrics = all_products(g, weight)
    scaled = (weight / weight.mean()).numpy()
    assert np.allclose(metrics.plain, np.einsum("ait,bjt->aibj", g, g))
    assert np.allclose(metrics.squared, np.einsum("ait,bjt,t->aibj", g, g, scaled**2))
    assert all_products(g, None).adam is None


def test_products_do_not_depend_on_how_they_are_cut(monkeypatch):
    g = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 3, 101)))
    whole = products(g)
    monkeypatch.setattr("marble.geometry.products.CHUNK", 60)
    assert np.allclose(products(g), whole)


def test_signal_is_unbiased_where_one_batch_is_not():
    noise = np.array([4.0, 1.0, 0.0])
    signal, one = [], []
    for seed in range(300):
        g = gradients(TRUE, noise, 4, seed)
        p = products(g)
        signal.append(sig.across(p, everyone(g)))
        one.append(np.diagonal(sig.within(p, everyone(g))))
    error = np.std(signal, axis=0) / np.sqrt(300) * 4 + 1e-9
    assert (np.abs(np.mean(signal, axis=0) - TRUE @ TRUE.T) < error).all()
    assert np.mean(one, axis=0) == pytest.approx([1 + 4, 1 + 1, 4], rel=0.02)


def test_shares_cosines_and_batches_needed():
    noise = np.array([4.0, 1.0, 1.0])
    g = gradients(TRUE, noise, 400)
    p, valid = products(g), everyone(g)
    signal = sig.across(p, valid)
    share = sig.signal_share(signal, sig.within(p, valid))
    assert share == pytest.approx([1 / 5, 1 / 2, 4 / 5], abs=0.02)
    assert sig.batches_for_half(share) == pytest.approx([4, 1, 0.25], abs=0.5)
    cos = sig.true_cosines(signal)
    assert cos[0, 1] == pytest.approx(0.6, abs=0.05) and cos[1, 2] == pytest.approx(-0.8, abs=0.05)
    # One batch shows the true cosine times the root of both shares of signal.
    apparent = sig.apparent_cosines(p, valid)
    assert apparent[0, 1] == pytest.approx(0.6 * np.sqrt(1 / 5 * 1 / 2), abs=0.03)
    assert apparent[1, 2] == pytest.approx(-0.8 * np.sqrt(1 / 2 * 4 / 5), abs=0.03)
    assert np.diagonal(apparent) == pytest.approx(1)


def test_without_signal_nothing_is_claimed():
    g = gradients(np.zeros((1, 50)), np.array([1.0]), 5, seed=3)
    signal = sig.across(products(g), everyone(g)) - 1.0  # certainly below zero
    assert np.isnan(sig.signal_norms(signal)).all() and np.isnan(sig.true_cosines(signal)).all()
    assert np.isnan(sig.batches_for_half(np.array([-0.1, 0.0]))).all()


@given(seed=st.integers(0, 10**6), batches=st.integers(3, 7))
@settings(max_examples=30, deadline=None)
def test_pairs_are_counted_only_where_both_batches_know_the_reward(seed, batches):
    rng = np.random.default_rng(seed)
    g, valid = rng.normal(size=(batches, 2, 5)), rng.random((batches, 2)) < 0.7
    g[~valid] = 0.0
    found = sig.across(products(torch.from_numpy(g)), valid)
    for i in range(2):
        for j in range(2):
            pairs = [
                g[a, i] @ g[b, j]
                for a in range(batches)
                for b in range(batches)
                if a != b and valid[a, i] and valid[b, j]
            ]
            if pairs:
                assert found[i, j] == pytest.approx(np.mean(pairs))
            else:
                assert np.isnan(found[i, j])


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=20)
    error = sig.jackknife(lambda index: values[index].mean(), 20)
    assert error == pytest.approx(values.std(ddof=1) / np.sqrt(20))


def test_the_error_of_the_share_covers_the_truth():
    inside = 0
    for seed in range(60):
        g = gradients(TRUE[:1], np.array([4.0]), 16, seed)
        p, valid = products(g), everyone(g)

        def share(index, p=p, valid=valid):
            part = sig.subset(p, index)
            signal = sig.across(part, valid[index])
            return sig.signal_share(signal, sig.within(part, valid[index]))

        found, error = share(np.arange(16)), sig.jackknife(share, 16)
        inside += bool(abs(found[0] - 0.2) < 2 * error[0])
    assert inside >= 51
