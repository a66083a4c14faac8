"""The verdict: right numbers, honest words, a checkpoint one can defend."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _runs import Spec, make_run

from marble.evaluation import compare_table
from marble.report import write
from marble.report.compare import comparison
from marble.report.folder import read_run
from marble.report.gains import gains
from marble.report.verdict import judge


def rescore(folder: Path, step: int, name: str, change: float) -> None:
    """Shift one reward of an evaluation by a constant, in the index and in evals.jsonl."""
    index = folder / f"evals/step-{step:06d}/index.json"
    data = json.loads(index.read_text())
    for sample in data["samples"]:
        if sample["scores"][name] is not None:
            sample["scores"][name] += change
    index.write_text(json.dumps(data))


def test_a_gain_is_the_paired_difference(run: Path) -> None:
    read = read_run(run)
    after = read.trained[-1]
    assert read.base is not None
    before, now = read.pictures(read.base), read.pictures(after)
    found = {g.name: g for g in gains(read.base, after, read.rewards)}
    assert list(found) == read.rewards
    ids = [i for i, picture in now.items() if "ocr" in picture.scores]
    deltas = [now[i].scores["ocr"] - before[i].scores["ocr"] for i in ids]
    ocr = found["ocr"]
    assert ocr.n == len(ids) == 12  # a third of the prompts have text; the rest are no zeros
    assert ocr.delta == pytest.approx(np.mean(deltas))
    assert ocr.after - ocr.base == pytest.approx(ocr.delta)
    assert ocr.lo < ocr.delta < ocr.hi
    assert ocr.won == pytest.approx(np.mean(np.array(deltas) > 0))


def test_all_improved(run: Path) -> None:
    verdict = judge(read_run(run))
    assert verdict.tone == "good"
    assert verdict.headline.startswith("All five rewards improved; the worst, ")
    assert verdict.chosen is not None and verdict.chosen.step == 300
    worst = verdict.chosen.worst
    assert worst is not None and worst.z == min(g.z for g in verdict.chosen.trained)
    assert any("Take step 300" in line for line in verdict.details)
    assert any("drift statistics is flagged" in line for line in verdict.details)


def test_a_fall_is_said_and_its_checkpoint_not_taken(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "fall", Spec(steps=60, eval_every=20))
    for step in (40, 60):
        rescore(folder, step, "clip", -0.2)
    verdict = judge(read_run(folder))
    assert verdict.chosen is not None and verdict.chosen.step == 20
    assert "sound" in " ".join(verdict.details)
    assert "The last evaluated step, 60, is worse: see clip" in " ".join(verdict.details)
    rescore(folder, 20, "clip", -0.2)
    verdict = judge(read_run(folder))
    assert verdict.tone == "bad"
    assert verdict.headline.startswith(
        "Four of five rewards improved, but clip fell; the worst, clip"
    )
    assert "No checkpoint is free of a clear loss" in " ".join(verdict.details)


def test_a_last_step_that_cheats_is_flagged_though_an_earlier_one_is_taken(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "late", Spec(steps=60, eval_every=20))
    index = folder / "evals/step-000060/index.json"
    data = json.loads(index.read_text())
    for sample in data["samples"]:
        sample["drift"]["saturation"] = 0.9
    index.write_text(json.dumps(data))
    verdict = judge(read_run(folder))
    assert verdict.chosen is not None and verdict.chosen.step == 40
    assert "The last evaluated step, 60, is worse: see saturation." in verdict.details
    html = write([folder], tmp_path / "p.html").read_text()
    assert "At the last evaluated step, 60, 1 of 8 is flagged." in html
    assert "The average trained picture is gaudier than 95 % of the base" in html


def test_nothing_improved_reads_as_english(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "down", Spec(steps=20, eval_every=20))
    for name in ("ocr", "geneval", "clip", "quality", "aesthetic", "preference", "fidelity"):
        rescore(folder, 20, name, -9.0)
    verdict = judge(read_run(folder))
    assert verdict.headline.startswith("None of five rewards improved, and ")
    assert verdict.details[0].startswith("Held out, never trained on: none of two improved, ")


def test_no_change_is_called_unclear(tmp_path: Path) -> None:
    spec = Spec(steps=20, eval_every=20, gain=0.0, rewards=("clip", "quality"), heldout=())
    folder = make_run(tmp_path / "still", spec)
    verdict = judge(read_run(folder))
    assert verdict.tone == "mixed"
    assert verdict.headline.startswith("No reward clearly changed")


def test_one_reward_and_no_evaluation(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", Spec(rewards=("ocr",), heldout=(), steps=20, eval_every=20))
    assert judge(read_run(one)).headline.startswith("The one reward, ocr, improved: +")
    (one / "evals.jsonl").unlink()
    assert "has not been evaluated yet" in judge(read_run(one)).headline
    (one / "metrics.jsonl").unlink()
    assert judge(read_run(one)).headline.startswith("Nothing has been logged yet")
    base_only = make_run(tmp_path / "base", Spec(steps=20, eval_every=99))
    assert "Only the base model" in judge(read_run(base_only)).headline


def test_lost_pictures_leave_the_means(tmp_path: Path) -> None:
    """Evaluation folders deleted to save space: the table falls back on evals.jsonl."""
    folder = make_run(tmp_path / "lean", Spec(steps=20, eval_every=20))
    full = judge(read_run(folder)).chosen
    for index in folder.glob("evals/*/index.json"):
        index.unlink()
    lean = judge(read_run(folder)).chosen
    assert full is not None and lean is not None
    for a, b in zip(full.trained, lean.trained):
        assert a.delta == pytest.approx(b.delta, abs=1e-9)
        assert b.hi - b.lo >= a.hi - a.lo  # without pairs, less is known
        assert np.isnan(b.won)


def test_comparison_tables_are_those_of_marble_compare(methods: list[Path]) -> None:
    runs = [read_run(path) for path in methods]
    names = ["first", "second", "third", "fourth"]
    found = comparison(runs, names)
    assert found is not None
    told = compare_table(methods)
    held = [n for n in told["metrics"] if n not in told["trained"]]
    heads = [*told["trained"], *(f"{n} (held out)" for n in held), "composite"]
    assert found.scores.head == heads
    assert [label for label, _ in found.scores.rows] == ["base", *names]
    for row, (_, cells) in zip(told["rows"], found.scores.rows):
        shown = [float(cell.text.replace("−", "-")) for cell in cells]
        order = [*told["trained"], *held]
        exact = [row["scores"][n]["mean"] for n in order] + [row["composite"]]
        assert shown == pytest.approx(exact, abs=0.006)
    column = found.costs.head.index("conflict")
    conflict = {label: cells[column].text for label, cells in found.costs.rows}
    assert conflict["first"] == "0 %" and conflict["second"] != "0 %"
    assert found.said[0].startswith("Mean gain over the ")
    assert [s.replace("first", told["rows"][1]["name"]) for s in found.said][-1].startswith(
        "Interv"
    )


def test_a_star_needs_an_interval_that_excludes_a_tie(tmp_path: Path) -> None:
    """Levels of the intervals: tests/evaluation/test_evaluation_versus.py."""
    spec = Spec(steps=20, eval_every=20, gain=0.0)
    alike = [make_run(tmp_path / name, spec) for name in "ab"]
    found = comparison([read_run(path) for path in alike], ["a", "b"])
    assert found is not None
    assert not any(cell.best for _, cells in found.scores.rows for cell in cells)
    assert all("does not exclude a tie" in text for text in found.said[:2])
    better = make_run(tmp_path / "c", replace(spec, gain=1.5))
    found = comparison([read_run(path) for path in (alike[0], better)], ["a", "c"])
    assert found is not None
    stars = {label: sum(cell.best for cell in cells) for label, cells in found.scores.rows}
    assert stars["base"] == stars["a"] == 0 and stars["c"] >= 3
    assert "c has the highest" in found.said[0] and "ahead of a by" in found.said[0]


def test_a_run_without_evaluation_is_left_out_of_the_comparison(
    methods: list[Path], tmp_path: Path
) -> None:
    young = make_run(tmp_path / "young", Spec(steps=20, logged=5, eval_every=99))
    runs = [read_run(path) for path in (*methods[:2], young)]
    found = comparison(runs, ["a", "b", "young"])
    assert found is not None and [label for label, _ in found.costs.rows] == ["a", "b"]
    assert comparison(runs[1:], ["b", "young"]) is None


def test_the_checkpoint_that_the_run_kept_is_taken_unless_it_is_unsound(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    steps = [e.step for e in read_run(folder).trained]
    state = json.loads((folder / "run.json").read_text())
    state["best"] = {"step": steps[-2], "value": 0.31, "by": "worst"}
    (folder / "run.json").write_text(json.dumps(state))
    verdict = judge(read_run(folder))
    assert verdict.chosen is not None and verdict.chosen.step == steps[-2]
    assert any("by the run's own probe, worst relative gain +0.31" in d for d in verdict.details)
    rescore(folder, steps[-2], read_run(folder).rewards[0], -50.0)
    assert judge(read_run(folder)).chosen.step != steps[-2]
