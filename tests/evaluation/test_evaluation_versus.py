"""Which run is ahead: paired intervals, held to their level on runs that do not differ."""

import json
from pathlib import Path

import numpy as np
import pytest

from marble.evaluation.runs import Evaluation
from marble.evaluation.versus import sentences, versus

NAMES = ["ocr", "clip", "look"]


def evaluation(folder: Path, scores_KN, prompts) -> Evaluation:
    folder.mkdir(parents=True)
    samples = [
        {
            "prompt": p,
            "seed": i,
            "scores": {
                n: None if np.isnan(v) else float(v) for n, v in zip(NAMES, scores_KN[:, i])
            },
        }
        for i, p in enumerate(prompts)
    ]
    (folder / "index.json").write_text(json.dumps({"samples": samples}))
    return Evaluation(1, "trained", {}, folder)


def draw(rng, shift, common, noise=0.3):
    """Scores of a run: the base's pictures, moved, with noise of the run's own."""
    table = common + np.array(shift)[:, None] + rng.normal(0, noise, common.shape)
    table[0, common.shape[1] // 2 :] = np.nan  # ocr applies to half of the prompts
    return table


def make(tmp_path, shifts, *, prompts=40, per=2, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    texts = [f"p{i // per}" for i in range(prompts * per)]
    common = rng.normal(0, 1, (len(NAMES), len(texts)))
    base = evaluation(tmp_path / "base", draw(rng, (0, 0, 0), common, 0), texts)
    runs = [
        evaluation(tmp_path / f"run{i}", draw(rng, shift, common, noise), texts)
        for i, shift in enumerate(shifts)
    ]
    return base, runs


def test_measures_are_those_of_the_pictures(tmp_path):
    base, runs = make(tmp_path, [(0.5, 0.3, 0.1)], noise=0)
    found = versus(base, runs, NAMES)
    spread = []
    for name in NAMES:
        values = [s["scores"][name] for s in base.samples if s["scores"][name] is not None]
        spread.append(np.std(values))
    gains = np.array([0.5, 0.3, 0.1]) / spread
    assert found.gains["mean gain"][0].mean == pytest.approx(gains.mean())
    assert found.gains["worst gain"][0].mean == pytest.approx(gains.min())
    assert found.worst == ["look"] and found.pictures == 80


def test_a_lead_is_told_and_a_tie_is_called_one(tmp_path):
    base, runs = make(tmp_path, [(0.1, 0.1, 0.1), (0.6, 0.5, 0.5), (0.1, 0.1, 0.12)])
    found = versus(base, runs, NAMES)
    for lead in found.leads:
        assert lead.first == 1 and lead.clear == [0, 2]
    told = sentences(found, ["a", "b", "c"])
    assert told[0].startswith("Mean gain over the 3 rewards trained on: b has the highest, +0.5")
    assert "ahead of a by +0.4" in told[0] and "tie" not in told[0]
    told = sentences(versus(base, [runs[0], runs[2]], NAMES), ["a", "c"])
    assert all("the interval does not exclude a tie with" in text for text in told[:2])
    assert "training seed" in told[-1]


def test_no_more_than_one_in_twenty_ties_is_called_a_lead(tmp_path):
    """40 pairs of equal runs: at 5 % two are expected; 7 or more has probability 0.003."""
    called = 0
    for seed in range(40):
        base, runs = make(tmp_path / str(seed), [(0.2, 0.2, 0.2)] * 2, seed=seed)
        lead = versus(base, runs, NAMES, seed=seed).leads[0]
        called += bool(lead.clear)
    assert called < 7


def test_pairing_narrows_the_interval(tmp_path):
    """Pictures are the same for both runs, so what they share is no noise."""
    base, runs = make(tmp_path, [(0.2, 0.2, 0.2), (0.3, 0.3, 0.3)], noise=0.05)
    found = versus(base, runs, NAMES)
    lead = found.leads[0].leads[0]
    assert lead.lo > 0 and lead.hi - lead.lo < 0.06


def test_nothing_in_common_is_no_comparison(tmp_path):
    base, runs = make(tmp_path, [(0.1, 0.1, 0.1)])
    other = evaluation(tmp_path / "other", np.ones((3, 2)), ["x", "y"])
    assert versus(base, [*runs, other], NAMES) is None
    assert versus(base, runs, []) is None
    constant = evaluation(tmp_path / "flat", np.ones((3, 80)), [f"p{i // 2}" for i in range(80)])
    assert versus(constant, runs, NAMES) is None
