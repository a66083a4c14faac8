"""`marble bench`: one JSON object and nothing else, or a table."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import marble.harmonise.bench
import marble.jacobian.bench
import marble.training.bench_studio
from marble.cli import app, bench_tables
from marble.errors import MarbleError
from marble.studio import asset


def bench(*words):
    done = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["bench", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def gradients_json():
    return bench("gradients", "--k", "2,3", "--repeats", "1", "--json")


def test_gradients_json(gradients_json):
    result = json.loads(gradients_json)  # fails on anything before or after the object
    assert set(result["results"]) == {"K=2", "K=3"}
    for row in result["results"].values():
        assert row["two_pass_ratio"] > 0 and row["retained_ratio"] > 0
        assert row["gram_relative_error"] < 1e-5
    assert {"ordinary_ms", "ratio_spread", "setup", "versions", "threads"} <= set(result)


def test_gradients_table(gradients_json, monkeypatch):
    result = json.loads(gradients_json)
    monkeypatch.setattr(marble.jacobian.bench, "bench_gradients", lambda ks, repeats: result)
    out = bench("gradients")
    for k in (2, 3):
        ratio = result["results"][f"K={k}"]["two_pass_ratio"]
        assert re.search(rf"^ *{k} +{ratio:.2f}× ", out, re.M)
    assert "One ordinary backward" in out and "{" not in out


def test_solver_json_and_table(monkeypatch):
    result = json.loads(bench("solver", "--k", "3", "--repeats", "2", "--json"))
    mine = next(row for row in result["results"] if row["solver"] == "marble")
    assert mine["k"] == 3 and mine["worst_gap"] <= 1e-10 and mine["worst_cosine"] >= -1e-9
    monkeypatch.setattr(marble.harmonise.bench, "bench_solver", lambda ks, repeats: result)
    out = bench("solver")
    assert re.search(rf"^ *3 +marble +{mine['median_ms']:.2f} ", out, re.M) and "{" not in out


def test_studio_json_and_table(monkeypatch):
    opening = {"imports_s": 2.0, "pipeline_s": 0.5}
    monkeypatch.setattr(marble.training.bench_studio, "_open", lambda folder: opening)
    result = json.loads(bench("studio", "--pictures", "4", "--rounds", "1", "--json"))
    seconds = result["seconds"]
    rewards = ["ocr", "studio-geneval", "studio-clip", "studio-pick", "studio-aesthetic"]
    parts = ["prompts", "sampling", "decoding", *(f"reward {name}" for name in rewards), "other"]
    assert list(seconds) == [*parts, "total"]
    assert seconds["total"] == pytest.approx(sum(seconds[part] for part in parts))
    assert all(seconds[part] > 0 for part in ("prompts", "sampling", "decoding", "reward ocr"))
    assert result["cpu_s"] > 0
    assert result["opening"] == opening
    assert result["target"] == {"total_s": 8.0, "pipeline_s": 2.0}
    assert result["setup"] == {"pictures": 4, "steps": 10, "rounds": 1}
    monkeypatch.setattr(marble.training.bench_studio, "bench_studio", lambda **options: result)
    out = bench("studio")
    assert re.search(rf"^ *sampling +{seconds['sampling']:.2f} ", out, re.M)
    assert "4 pictures, drawn and scored" in out and "{" not in out


@pytest.mark.slow
def test_the_pipeline_opens_in_a_fresh_process():
    found = marble.training.bench_studio._open(str(asset("pipeline")))
    assert 0 < found["pipeline_s"] < found["imports_s"]
    with pytest.raises(MarbleError, match="a fresh process cannot open it"):
        marble.training.bench_studio._open("nowhere/at/all")


@pytest.mark.parametrize("k", ["0", "five", "", "3,3"])
def test_wrong_k(k):
    done = CliRunner().invoke(app, ["bench", "solver", "--k", k])
    assert done.stdout == "" and str(done.exception).startswith(f"--k {k}: give different numbers")


def test_a_mistake_is_one_clear_line():
    done = subprocess.run(
        [sys.executable, "-m", "marble", "bench", "solver", "--k", "none"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("marble: --k none") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["gradients", "solver", "studio"])
def test_help_has_examples(verb):
    assert f"marble bench {verb} --" in bench(verb, "--help")


def test_a_loop_is_a_line_in_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    stored = json.loads((results / "loop_sd35m_h200.json").read_text())
    bench_tables.show_loop(stored)
    lines = capsys.readouterr().out.splitlines()
    wanted = "ms per picture sampling decoding training pictures/s with rewards"
    assert lines[1].split() == wanted.split()
    assert len(stored["steps"]) > 2
    for line, (name, row) in zip(lines[2:], stored["steps"].items()):
        speed = row["pictures_per_gpu_second"], row["pictures_per_gpu_second_with_rewards"]
        assert line.strip().startswith(f"{name} ") and len(line) <= 80
        assert line.split()[-2:] == [f"{value:.2f}" for value in speed]
