import numpy as np
import pytest

from marble.errors import MarbleError
from marble.harmonise import debiased_gram, min_norm_point


def blocks(parts):
    """[H, H, K, K] from gradients [H, K, D]."""
    return np.einsum("aid,bjd->abij", parts, parts)


def test_without_noise_it_is_the_gram():
    rows = np.random.default_rng(0).standard_normal((4, 20))
    found = debiased_gram(blocks(np.stack([rows, rows])))
    np.testing.assert_allclose(found, rows @ rows.T, atol=1e-9)


def test_noise_does_not_bias_norms_and_cosines():
    """A noisy reward: the plain squared norm doubles, the debiased one does not, on average."""
    rng = np.random.default_rng(1)
    true = np.zeros((2, 100))
    true[0, 0], true[1, :2] = 1.0, (0.6, 0.8)
    noise = np.array([0.02, 0.1])[:, None]
    plain, debiased = [], []
    for _ in range(400):
        parts = true + noise * 2**0.5 * rng.standard_normal((2, *true.shape))
        mean = parts.mean(axis=0)
        plain.append(mean @ mean.T)
        found = debiased_gram(blocks(parts))
        debiased.append(found)
    plain, debiased = np.mean(plain, axis=0), np.mean(debiased, axis=0)
    assert plain[1, 1] > 1.9
    np.testing.assert_allclose(debiased, true @ true.T, atol=0.03)


def test_more_parts_use_every_pair():
    rng = np.random.default_rng(2)
    parts = rng.standard_normal((2, 5)) + 0.1 * rng.standard_normal((3, 2, 5))
    products = blocks(parts)
    pairs = [products[a, b] for a in range(3) for b in range(3) if a != b]
    expected = np.mean(pairs, axis=0)
    np.testing.assert_allclose(debiased_gram(products), expected, rtol=1e-9)


def test_signal_below_noise_is_floored():
    first = np.array([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0]])
    second = np.array([[1.0, 0.0, 0.0], [-1.0, 0.2, 0.0]])  # the second reward contradicts itself
    found = debiased_gram(blocks(np.stack([first, second])), floor=0.05)
    plain = np.linalg.norm((first + second)[1] / 2) ** 2
    assert found[1, 1] == pytest.approx(0.05 * plain)
    assert np.linalg.eigvalsh(found).min() >= -1e-12
    assert np.isfinite(min_norm_point(found).alpha).all()


def test_result_is_always_a_gram_matrix():
    rng = np.random.default_rng(3)
    for _ in range(100):
        parts = rng.standard_normal((2, 6, 8)) + 0.3 * rng.standard_normal((6, 8))
        found = debiased_gram(blocks(parts))
        norms = np.sqrt(np.diagonal(found))
        assert np.linalg.eigvalsh(found / np.outer(norms, norms)).min() >= -1e-12
        np.testing.assert_array_equal(found, found.T)


def test_silent_reward_keeps_zero():
    parts = np.ones((2, 2, 3))
    parts[:, 1] = 0.0
    found = debiased_gram(blocks(parts))
    assert found[1].tolist() == [0.0, 0.0]


def test_bad_input():
    with pytest.raises(MarbleError, match=r"\[H, H, K, K\]"):
        debiased_gram(np.zeros((2, 2, 3)))
    with pytest.raises(MarbleError, match="at least 2"):
        debiased_gram(np.zeros((1, 1, 3, 3)))
    with pytest.raises(MarbleError, match="floor"):
        debiased_gram(np.zeros((2, 2, 3, 3)), floor=0.0)
    bad = np.zeros((2, 2, 3, 3))
    bad[0, 1, 2, 2] = np.nan
    with pytest.raises(MarbleError, match="reward number 2"):
        debiased_gram(bad)
