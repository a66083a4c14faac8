"""`marble bench options`: errors of options that trade exactness for speed."""

import json

import pytest
import torch
from typer.testing import CliRunner

from marble.bench import options
from marble.bench.options import apart, bench_options, eager
from marble.cli import app
from marble.cli.bench_tables import show_options
from marble.models import fp8
from marble.models.compiling import Compiled


@pytest.fixture(scope="module")
def measured(toy, tmp_path_factory):
    """As on a GPU: torch multiplies fp8 on any device."""
    out = tmp_path_factory.mktemp("bench") / "options.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8, "check", lambda device: None)
        found = bench_options(str(toy.recipe_file), device="cpu", pictures=8, repeats=1, out=out)
    return found, out


def test_every_option_is_measured_and_written(measured):
    found, out = measured
    assert found["complete"] and not found["failures"]
    assert json.loads(out.read_text()) == found
    assert found["setup"]["pictures"] == 8 and {"date", "device", "versions"} <= set(found)


def test_fp8_is_near_and_not_the_same(measured):
    low = measured[0]["fp8"]
    assert low["layers"] > 5 and low["speed"] > 0
    errors = low["velocity_error"]
    assert len(errors["fp8"]) == options.LEVELS and all(0 < e < 0.2 for e in errors["fp8"])
    assert max(errors["bf16, uncompiled and in halves"]) < 1e-3 < min(errors["fp8"])
    rows = low["against"]
    assert 0 < rows["fp8"]["latents"] < rows["another seed"]["latents"]
    assert rows["fp8"]["by_another_seed"] < 1 == rows["another seed"]["by_another_seed"]


def test_fewer_steps_are_told_beside_more(measured):
    found = measured[0]["steps"]
    assert found["steps"] == 3
    rows = found["against"]
    assert set(rows) == {"another seed", "6 steps", "2 steps", "1 steps"}
    assert rows["1 steps"]["latents"] > rows["2 steps"]["latents"] > 0
    assert rows["2 steps"]["time"] == pytest.approx(2 / 3)


def test_the_extremes_have_a_cosine_and_a_time(measured):
    found = measured[0]["extremes"]
    assert found["pictures_per_prompt"] == 2
    for name in ("extremes 0.5", "any 0.5", "all, other timesteps"):
        assert len(found["against"][name]["cosines"]) == options.SETS
        assert -1 <= found["against"][name]["cosine"] < 1 - 1e-6
    assert 0 < found["against"]["extremes 0.5"]["time"] < 3


def test_a_cpu_says_why_fp8_is_not_measured(toy, capsys):
    words = ["bench", "options", str(toy.recipe_file), "--device", "cpu", "--pictures", "8"]
    given = CliRunner().invoke(app, [*words, "--repeats", "1", "--json", "--trust"])
    assert given.exit_code == 0, given.output
    found = json.loads(given.stdout)
    assert "this is a CPU" in found["fp8"]["not measured"] and found["complete"]
    show_options(found)
    said = capsys.readouterr().out
    assert "fp8 not measured" in said and "extremes 0.5" in said and "6 steps" in said


def test_the_table_has_fp8_too(measured, capsys):
    show_options(measured[0])
    said = capsys.readouterr().out
    assert "times bf16's sampling speed" in said and "another seed" in said


def test_too_few_pictures_are_told(toy):
    given = CliRunner().invoke(app, ["bench", "options", "studio", "--pictures", "7"])
    assert "--pictures: must be at least 8" in str(given.exception)


def test_differences_are_counted_in_levels():
    one, two = torch.zeros(1, 3, 10, 10, dtype=torch.uint8), torch.zeros(1, 3, 10, 10)
    two[0, 0, 0, 0], two[0, 0, 0, 1] = 1, 200
    found = apart((torch.ones(2), two.to(torch.uint8)), (torch.ones(2), one))
    assert found["mean_levels"] == pytest.approx(201 / 300)
    assert found["within_one_level"] == pytest.approx(299 / 300)
    assert found["p99_levels"] == 0 and found["latents"] == 0


def test_eager_is_for_the_while():
    class Adapter:
        compiled = Compiled([], lambda line: None, backend="eager")

    with pytest.raises(ValueError, match="x"), eager(Adapter):
        assert Adapter.compiled.mode == "off"
        raise ValueError("x")
    assert Adapter.compiled.mode == "whole"
