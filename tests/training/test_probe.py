"""Progress on twins: what the probe draws, what it finds, what it is trusted with, and resume."""

import json
import shutil

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from _toy_world import run_toy
from marble.data import Prompt
from marble.evaluation import relative_gains, twin_correlations
from marble.training.probe import probe_samples

WORDS = ["balance.progress.probe=30", "balance.progress.probe_every=2", "train.steps=8"]


def run(folder, *words, resume=False):
    run_toy(folder, "eval.images_per_prompt=1", *WORDS, *words, resume=resume)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def prompts(**counts):
    return {s: [Prompt(f"{s} {i}", s, {}) for i in range(n)] for s, n in counts.items()}


def test_the_probe_is_fixed_and_even():
    known = prompts(a=50, b=50, c=2)
    samples = probe_samples(known, 30, seed=3)
    assert samples == probe_samples(known, 30, seed=3)
    assert samples != probe_samples(known, 30, seed=4)
    sources = [s.prompt.source for s in samples]
    assert [sources.count(s) for s in "abc"] == [10, 10, 2]  # a source that has no more
    assert len({s.prompt.text for s in samples}) == len({s.seed for s in samples}) == len(samples)
    assert len(probe_samples(known, 1, seed=0)) == 3  # every source has a say


@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=20),
    st.floats(-3, 3),
    st.floats(0.01, 100),
)
def test_progress_is_in_the_base_s_units(values, moved, scale):
    then = np.array([values])
    if then.std() < 1e-3:
        return
    twins = ((then + moved * then.std()) * scale, then * scale)
    np.testing.assert_allclose(relative_gains(*twins), moved, atol=1e-6)
    np.testing.assert_allclose(twin_correlations(*twins), 1.0, atol=1e-6)


def test_what_cannot_be_known_is_nan_and_noise_is_not_trusted():
    rng = np.random.default_rng(0)
    then = np.stack([rng.normal(size=2000), np.ones(2000), np.full(2000, np.nan)])
    now = np.stack([rng.normal(size=2000), np.ones(2000), np.full(2000, np.nan)])
    alike = twin_correlations(now, then)
    assert abs(alike[0]) < 0.1 and np.isnan(alike[1:]).all()


def test_a_run_measures_and_uses_it(tmp_path):
    rows = run(tmp_path / "run", "balance.progress.beta=8")
    names = [name for name in rows[2] if name.startswith("progress/")]
    assert len(names) == 5
    measured = [row["step"] for row in rows if names[0] in row]
    assert measured == [3, 5, 7]  # before the third step, and so on: two steps apart
    # No other source of weights is left: the one that has come furthest has least.
    last = rows[-1]
    known = {name: rows[6][f"progress/{name}"] for name in ("similarity", "preference")}
    trust = {name: rows[6][f"progress_trust/{name}"] for name in known}
    assert min(trust.values()) > 0.5  # twins of a few steps are alike
    ahead, behind = sorted(known, key=lambda name: -known[name] * trust[name])
    assert last[f"coefficient/{ahead}"] <= last[f"coefficient/{behind}"]


def test_noise_gets_no_more_than_an_average_reward(tmp_path):
    noise = '{name: noise, reward: "marble.rewards.synthetic:Noise", options: {seed: 1}}'
    rows = run(tmp_path / "run", "balance.progress.beta=8", f"rewards.add=[{noise}]")
    trust = [row["progress_trust/noise"] for row in rows if "progress_trust/noise" in row]
    assert max(trust) < 0.5
    shares = [row["coefficient/noise"] for row in rows[2:]]
    assert max(shares) < 0.35  # of six rewards


def test_a_resumed_run_goes_on_with_what_was_measured(tmp_path):
    """Killed between two drawings of the probe, which the weights of the next step come from."""
    every = "train.checkpoint_every=1"
    whole = run(tmp_path / "whole", every, "train.keep_checkpoints=8")
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    for path in sorted((cut / "checkpoints").glob("step-*"))[5:]:
        shutil.rmtree(path)
    (cut / "checkpoints" / "latest").unlink()
    again = run(cut, every, "train.keep_checkpoints=8", resume=True)

    def numbers(rows):
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]

    for one, other in zip(numbers(again), numbers(whole), strict=True):
        one.pop("images_per_s"), other.pop("images_per_s")
        assert one == other


def test_a_hybrid_hears_of_it_too(tmp_path):
    rows = run(tmp_path / "run", "balance.method=marble", "balance.hybrid=gate", "balance.every=2")
    plain = run(
        tmp_path / "plain",
        "balance.method=marble",
        "balance.hybrid=gate",
        "balance.every=2",
        "balance.progress.probe=0",
    )
    assert "progress/vivid" in rows[2] and "progress/vivid" not in plain[2]
    same = [
        one["coefficient/vivid"] == other["coefficient/vivid"] for one, other in zip(rows, plain)
    ]
    assert all(same[:2]) and not any(same[2:4])  # other weights from the first drawing on
