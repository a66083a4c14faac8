"""What exact state costs, measured within one run."""

import pytest
from _survive import make_world

from marble.training.bench_checkpoint import bench_checkpoint


def test_the_benchmark_measures_a_real_save(tmp_path):
    recipe = make_world(tmp_path / "world")
    (tmp_path / "disk").mkdir()
    result = bench_checkpoint(str(recipe), rounds=2, folder=str(tmp_path / "disk"), device="cpu")
    assert 0 < result["blocked_s"] < result["save_s"]
    assert result["added"] == result["save_s"] / (10 * result["step_s"])
    assert 0.01 < result["checkpoint_mb"] < 10
    assert not list((tmp_path / "disk").iterdir())


@pytest.mark.slow
def test_saving_every_ten_steps_adds_less_than_three_percent_to_the_studio():
    result = bench_checkpoint("studio", ["data.prompts_per_epoch=6"], rounds=3, device="cpu")
    assert result["added"] <= result["target"] == 0.03
