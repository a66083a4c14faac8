"""The benchmark of roundings runs in its small form; uncompiled, forward passes are the same."""

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import model_roundings

    return model_roundings


def test_every_change(script, tmp_path):
    out = tmp_path / "roundings.json"
    result = script.main(["--tiny", "--device", "cpu", "--seconds", "3600", "--out", str(out)])
    assert result == json.loads(out.read_text()) and "tracebacks" not in result
    slow = result["slow"]
    assert slow == {"equal": 1.0, "velocity": 0.0, "gradient": 0.0}
    assert result["our LoRA layer"]["equal"] == 1.0
    compiled = [found for name, found in result.items() if name.startswith("compiled")]
    assert len(compiled) == 5
    for found in compiled:  # by torch's own backend, with rounding of its own kinds only
        assert found["velocity"] < 0.01 and found["gradient"] < 0.03
