"""Run folders read back, and compared."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

from marble.errors import MarbleError
from marble.evaluation import compare_table, read_jsonl, read_run, score_tables, summarise

NAMES = ["ocr", "clip"]
PROMPTS = [f"p{i}" for i in range(12)]
SOURCES = ["ocr"] * 6 + ["general"] * 6


def scores(shift, seed):
    noise = np.random.default_rng(seed).normal(0, 0.05, size=(2, 12))
    base = np.random.default_rng(0).normal(0, 1, size=(2, 12))
    table = base + noise + np.array(shift)[:, None]
    table[0, 6:] = np.nan
    return dict(zip(NAMES, table))


def write_run(folder, shift, *, method="marble", with_base=True):
    folder.mkdir()
    rewards = {"train": [{"name": n} for n in NAMES]}
    config = {"balance": {"method": method}, "rewards": rewards}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [{"step": i, "harmony/min": 0.1 * i - 0.1, "time/train": 2.0} for i in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    evals = []
    stages = [("base", 0, (0, 0), 1)] if with_base else []
    stages += [("trained", 5, np.array(shift) / 2, 2), ("trained", 10, shift, 3)]
    for policy, step, moved, seed in stages:
        found = scores(moved, seed) if policy != "base" else scores((0, 0), 0)
        place = f"evals/step-{step:06d}"
        (folder / place).mkdir(parents=True)
        entries = [
            {
                "id": i,
                "prompt": prompt,
                "source": source,
                "seed": i,
                "scores": {n: None if np.isnan(found[n][i]) else float(found[n][i]) for n in NAMES},
            }
            for i, (prompt, source) in enumerate(zip(PROMPTS, SOURCES))
        ]
        (folder / place / "index.json").write_text(json.dumps({"samples": entries}))
        record = summarise(found, SOURCES, PROMPTS)
        evals.append({"step": step, "policy": policy, "folder": place, "rewards": record})
    (folder / "evals.jsonl").write_text("".join(json.dumps(r) + "\n" for r in evals))
    return folder


def test_truncated_last_line_is_left_out(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 0}\n{"step": 1}\n{"step": 2, "lo')
    assert read_jsonl(file) == [{"step": 0}, {"step": 1}]
    file.write_text('{"step": 0}\n{"ste\n{"step": 2}\n')
    with pytest.raises(MarbleError, match=r"m\.jsonl:2: damaged line in the middle"):
        read_jsonl(file)
    assert read_jsonl(tmp_path / "none.jsonl") == []


def test_keys_of_earlier_versions_have_their_present_names(tmp_path):
    rows = tmp_path / "metrics.jsonl"
    rows.write_text('{"step": 1, "canary/diversity": 0.2, "time/twins": 3.0, "kl": 0.1}\n')
    assert read_jsonl(rows) == [{"step": 1, "drift/diversity": 0.2, "time/paired": 3.0, "kl": 0.1}]


def test_reading_a_run(tmp_path):
    run = read_run(write_run(tmp_path / "a", (0.5, 0.2)))
    assert (run.name, run.method, run.rewards) == ("a", "marble", NAMES)
    assert run.base.step == 0 and run.last.step == 10 and run.seconds == 6.0
    now, then, prompts = score_tables(run.last, run.base, NAMES)
    assert now.shape == (2, 12) and prompts == PROMPTS
    assert np.isnan(now[0, 6:]).all() and np.nanmean(now[0] - then[0]) == pytest.approx(
        0.5, abs=0.1
    )
    with pytest.raises(MarbleError, match="not a run folder"):
        read_run(tmp_path)


def test_comparison(tmp_path):
    good = write_run(tmp_path / "good", (0.5, 0.2))
    greedy = write_run(tmp_path / "greedy", (-0.4, 0.9), method="weighted_sum")
    table = compare_table([good, greedy])
    json.dumps(table, allow_nan=False)
    assert table["metrics"] == NAMES
    base, first, second = table["rows"]
    assert (base["name"], first["name"], second["method"]) == ("base", "good", "weighted_sum")
    assert sum(row["composite"] for row in table["rows"]) == pytest.approx(0, abs=1e-9)
    assert first["gains"]["ocr"]["lo"] > 0 and first["gains"]["clip"]["lo"] > 0
    assert first["joint_domination"] == 1 and first["joint_collapse"] == 0
    assert second["joint_domination"] == pytest.approx(0.5)  # where only clip applies
    assert second["worst_gain"]["reward"] == "ocr" and second["worst_gain"]["sigma"] < 0
    assert second["won"]["ocr"] == 0 and second["won"]["clip"] == 1
    assert first["hypervolume"]["value"] > 0 == second["hypervolume"]["value"]
    assert [row["pareto"] for row in table["rows"]] == [False, True, True]
    assert first["harmony"]["harmony"]["conflict_rate"] == pytest.approx(1 / 3)
    assert first["harmony"]["harmony_applied"]["n"] == 0
    spread = [np.nanstd(v) for v in scores((0, 0), 0).values()]
    means = [first["gains"][n]["mean"] for n in NAMES]
    assert first["hypervolume"]["value"] == pytest.approx(
        means[0] * means[1] / (spread[0] * spread[1]), rel=1e-6
    )


def test_comparison_without_base_or_pictures(tmp_path):
    run = write_run(tmp_path / "a", (0.5, 0.2), with_base=False)
    table = compare_table([run])
    assert [row["name"] for row in table["rows"]] == ["a"] and "gains" not in table["rows"][0]
    other = write_run(tmp_path / "b", (0.5, 0.2))
    (other / "evals/step-000010/index.json").unlink()
    row = compare_table([other])["rows"][1]
    assert "gains" not in row and row["scores"]["ocr"]["mean"] is not None


def test_a_run_that_measured_nothing_yet(tmp_path):
    run = write_run(tmp_path / "a", (0.5, 0.2))
    (run / "evals.jsonl").write_text("")
    with pytest.raises(MarbleError, match="a: has no evaluation of the trained model yet"):
        compare_table([run])


def test_importing_needs_no_torch():
    code = "import sys, marble.evaluation; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
