"""What rules make of known gradients: weights, alignment with the truth, conflicts."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.geometry import alignment as at
from marble.geometry.gradients import Gradients
from marble.geometry.products import products
from marble.geometry.report import measure
from marble.geometry.rules import candidates
from marble.geometry.run import _python
from marble.training.metrics import plain

NAMES = ["a", "b", "c"]
TRUE = np.zeros((3, 300))
TRUE[0, 0], TRUE[1, 1], TRUE[2, :3] = 3.0, 1.0, (-0.6, 0.0, 0.8)


def made(noise_K, batches=16, seed=0, metric=None, valid=None):
    """Gradients with known truth; the sum row is Σ g_k, nothing is outside."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(batches, *TRUE.shape)) * np.sqrt(np.array(noise_K) / 300)[:, None]
    g = TRUE + noise
    valid = np.ones((batches, 3), dtype=bool) if valid is None else valid
    g[~valid] = 0.0
    rows = np.concatenate([g, g.sum(1, keepdims=True), np.zeros((batches, 1, 300))], axis=1)
    scores = np.zeros((batches, 3))
    return Gradients(NAMES, "full", torch.from_numpy(rows), valid, valid, scores, metric)


def rule(name):
    return next(c for c in candidates([1, 2, 1], adam=True) if c.label == name)


def test_weights_of_known_gram_matrices():
    everyone = np.ones(2, dtype=bool)
    gram = np.array([[4.0, 0.0], [0.0, 1.0]])
    # The min-norm point of (2, 0) and (0, 1) weighs by 1/‖g‖²; of unit vectors, equally.
    assert rule("mgda").solve(gram, everyone)[0] == pytest.approx([0.2, 0.8])
    alpha, c = rule("marble").solve(gram, everyone)
    assert alpha == pytest.approx([0.5, 0.5]) and c == pytest.approx([0.375, 0.75, 0])
    assert rule("weighted sum").solve(gram, everyone)[1].tolist() == [0, 0, 1]
    one = rule("marble").solve(gram, np.array([True, False]))[0]
    assert one.tolist() == [1, 0]


def test_without_noise_batches_agree_with_the_limit():
    found = measure(made([0, 0, 0]), np.array([0.2, 0.5, 0.3]))
    for label, entry in found["rules"].items():
        one, limit = entry["averaged"]["1"], entry["limit"]
        for name in NAMES:
            assert one["plain"]["cosine"][name] == pytest.approx(limit["plain"]["cosine"][name])
        assert one["plain"]["conflict_in_batch"] == one["plain"]["conflict_out_of_batch"]
        if label != "weighted sum":
            assert one["alpha"]["mean"] == pytest.approx(limit["alpha"], abs=1e-6)
    own = found["rules"]["as trained"]["averaged"]["1"]["coefficient"]["mean"]
    assert own == pytest.approx({"a": 0.2, "b": 0.5, "c": 0.3})
    uniform = found["rules"]["uniform"]["averaged"]["1"]["plain"]
    d = TRUE.mean(0)
    expected = TRUE @ d / np.linalg.norm(TRUE, axis=1) / np.linalg.norm(d)
    assert list(uniform["cosine"].values()) == pytest.approx(expected)
    assert uniform["worst"] == pytest.approx(expected.min()) and uniform["worst_reward"] == "c"
    # a and c conflict; the min-norm direction serves all alike.
    assert expected.min() < 0
    assert found["rules"]["marble"]["limit"]["plain"]["worst"] > 0.2


def test_alignment_from_other_batches_is_that_with_the_truth():
    """The estimate against the direction's real cosine, which only a test can know."""
    gradients = made([4, 4, 4], batches=64, seed=1)
    found = measure(gradients)["rules"]["uniform"]["averaged"]["1"]["plain"]
    d = gradients.rows_BRT[:, :3].mean(1).numpy()
    real = d @ TRUE.T / np.linalg.norm(TRUE, axis=1) / np.linalg.norm(d, axis=1, keepdims=True)
    for k, name in enumerate(NAMES):
        error = found["cosine_error"][name]
        assert found["cosine"][name] == pytest.approx(real[:, k].mean(), abs=3 * error)
        assert 0 < error < 0.1


def test_noise_draws_weights_to_uniform_and_averaging_takes_them_back():
    found = measure(made([30, 30, 30], batches=32))["rules"]["marble"]
    limit = np.array(list(found["limit"]["alpha"].values()))
    off = [
        np.abs(np.array(list(found["averaged"][n]["alpha"]["mean"].values())) - limit).sum()
        for n in ("1", "32")
    ]
    one = np.array(list(found["averaged"]["1"]["alpha"]["mean"].values()))
    assert np.abs(one - 1 / 3).sum() < np.abs(limit - 1 / 3).sum() and off[1] < off[0]


def test_conflicts_removed_in_a_batch_are_back_in_the_next():
    found = measure(made([30, 30, 30], batches=24))["rules"]["marble"]["averaged"]["1"]["plain"]
    assert found["conflict_in_batch"] == 0 and found["conflict_out_of_batch"] > 0.3


def test_adam_turns_a_direction():
    """A metric that knows only the third coordinate leaves what lies there."""
    metric = torch.full((300,), 1e-6, dtype=torch.float64)
    metric[2] = 1.0
    found = measure(made([0, 0, 0], metric=metric))["rules"]["uniform"]
    for entry in (found["averaged"]["1"]["adam"], found["limit"]["adam"]):
        assert entry["cosine"]["c"] == pytest.approx(0.8, abs=1e-3)
        assert entry["cosine"]["a"] == pytest.approx(0.0, abs=1e-3)


def test_a_metric_of_ones_changes_nothing():
    found = measure(made([2, 2, 2], metric=torch.full((300,), 7.0)))
    for entry in found["rules"].values():
        assert entry["averaged"]["1"]["adam"]["cosine"] == pytest.approx(
            entry["averaged"]["1"]["plain"]["cosine"]
        )
    assert found["signal"]["adam"]["a"]["share"] == found["signal"]["plain"]["a"]["share"]


def test_a_reward_lost_in_noise_has_no_cosine_and_json_has_no_nan():
    gradients = made([0.1, 0.1, 0.1])
    noise = np.random.default_rng(5).normal(size=(16, 300)) / np.sqrt(300)
    gradients.rows_BRT[:, 1] = torch.from_numpy(noise - noise.mean(0))
    record = plain(_python(measure(gradients)))
    text = json.dumps(record, allow_nan=False)
    assert "NaN" not in text
    signal = record["signal"]["plain"]["b"]
    assert not signal["resolved"] and signal["share"] == 0 and signal["share_raw"] < 0
    worth = record["rules"]["uniform"]["averaged"]["1"]["plain"]
    assert worth["cosine"]["b"] is None and worth["worst"] is not None
    assert abs(worth["progress"]["b"]) < 0.1 and worth["progress"]["a"] > 0.5


def test_a_reward_that_some_batches_do_not_know():
    valid = np.ones((16, 3), dtype=bool)
    valid[::4, 1] = False
    found = measure(made([1, 1, 1], valid=valid))
    share = found["signal"]["plain"]["b"]
    assert share["share_raw"] == pytest.approx(0.5, abs=4 * share["share_error"])
    assert found["rules"]["marble"]["averaged"]["16"]["alpha"]["mean"]["b"] > 0


@given(batches=st.integers(1, 40), size=st.integers(1, 40))
def test_groups_are_disjoint_and_whole(batches, size):
    groups = at.groups_of(batches, size)
    assert len(groups) == batches // size
    members = np.concatenate(groups) if groups else np.zeros(0)
    assert len(set(members.tolist())) == len(groups) * size
    assert all(0 <= m < batches for m in members)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_groups_gram_is_that_of_its_mean_gradients(seed):
    g = np.random.default_rng(seed).normal(size=(6, 3, 7))
    valid = np.ones((6, 3), dtype=bool)
    group = np.array([1, 2, 5])
    mean = g[group].mean(0)
    found = at.group_gram(products(torch.from_numpy(g)), at.group_weights(valid, group))
    assert np.allclose(found, mean @ mean.T)
