"""The benchmark of batch sizes runs in its small form, and tells of every size it was given."""

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import batch_sizes

    return batch_sizes


def test_every_part(script, tmp_path):
    out = tmp_path / "sizes.json"
    words = ["--tiny", "--device", "cpu", "--seconds", "3600", "--sizes", "1,4", "--whole", "5"]
    words += ["--out", str(out)]
    result = script.main(words)
    assert result == json.loads(out.read_text())
    for part, kinds in (("products", 12), ("attention", 4)):
        assert set(result[part]) == {"1", "4"}
        for costs in result[part].values():
            assert len(costs) == kinds and all(cost > 0 for cost in costs.values())
    assert set(result["whole, 5"]) == {"training", "rollout"}
    assert "tracebacks" not in result
