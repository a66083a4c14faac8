"""The benchmark of SD3.5 Medium's size runs, in its small form, and its gradients agree."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("options", [[], ["--checkpointing", "--no-input-casts"]])
def test_small_form(monkeypatch, options):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import sd35m_gradients

    arguments = ["--tiny", "--device", "cpu", "--batch", "2", "--repeats", "1", "--ks", "3", "8"]
    result = sd35m_gradients.run(sd35m_gradients.parse([*arguments, *options]))
    sd35m_gradients.show(result)
    json.dumps(result)
    assert result["error K=3 against separate bf16 backwards"]["gram_relative"] < 0.02
    assert set(result["ratios"]) == {"K=3", "K=8", "retained K=3 / ordinary"}
    assert "sd35m" in sys.modules
