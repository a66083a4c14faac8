"""A run on weights that have changed since is told."""

import numpy as np

from marble.geometry.check import compare_scores, warning

NAMES = ["ocr", "clip"]


def test_the_same_model_raises_no_doubt():
    rng = np.random.default_rng(0)
    here, run = rng.normal(0.5, 0.1, (24, 2)), rng.normal(0.5, 0.1, (10, 2))
    scores = compare_scores(NAMES, here, run)
    assert warning(scores) is None
    assert scores["ocr"]["here"] == here[:, 0].mean() and scores["clip"]["run"] == run[:, 1].mean()


def test_other_weights_are_told_by_the_reward_that_notices():
    rng = np.random.default_rng(0)
    here, run = rng.normal(0.5, 0.1, (24, 2)), rng.normal([0.5, 3.0], 0.1, (10, 2))
    line = warning(compare_scores(NAMES, here, run))
    assert line is not None and "clip" in line and "ocr" not in line


def test_what_a_run_does_not_say_is_no_doubt():
    here = np.full((4, 2), 0.5)
    for run in (np.zeros((0, 2)), np.full((10, 2), np.nan), np.zeros((1, 2))):
        assert warning(compare_scores(NAMES, here, run)) is None
