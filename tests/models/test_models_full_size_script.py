"""The benchmark of large models runs, in its small form, and its gradients agree."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    "name",
    [
        "qwen-image",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("flux2-klein", "zimage", "flux1-dev")),
        pytest.param("sd35l", marks=pytest.mark.slow),
    ],
)
def test_every_measurement_is_made(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import full_size

    words = [name, "--tiny", "--device", "cpu", "--repeats", "1", "--out", str(tmp_path)]
    result = full_size.run(name, full_size.parse(words))
    assert result["complete"], result.get("traceback")
    assert result == json.loads((tmp_path / f"{name}.json").read_text())
    assert result["gradient_error"] < 0.05  # both in bf16
    for step in ("step", "step without checkpointing"):
        assert result[step]["refresh / ordinary"] > 0
    assert result["rollout"]["sample latents"]["ms_per_picture"] > 0
    measured = set(result["peak_memory_bytes"])
    assert {"sample latents", "decode pictures", "step, ordinary", "step, refresh"} <= measured


def test_a_failure_leaves_its_reason(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import full_size

    def broken(*args, **options):
        raise RuntimeError("no room")

    monkeypatch.setattr(full_size, "build_adapter", broken)
    args = full_size.parse(["zimage", "--tiny", "--device", "cpu", "--out", str(tmp_path)])
    assert not full_size.run("zimage", args)["complete"]
    assert json.loads((tmp_path / "zimage.json").read_text())["failed"] == "RuntimeError: no room"
    with pytest.raises(SystemExit):
        full_size.parse(["other", "--out", str(tmp_path)])
    assert "full_size_models" in sys.modules
