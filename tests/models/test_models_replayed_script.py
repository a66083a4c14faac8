"""The benchmark of recorded training runs, and finds no difference where nothing is recorded."""

import json
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_small_form_of_it(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import replayed_training

    out = tmp_path / "found.json"
    words = ["replayed_training.py", "--epochs", "1", "--sizes", "1x2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    replayed_training.main()
    found = json.loads(out.read_text())["steps"]["2"]
    assert found["seconds, compile auto"] > 0 and found["gradient error"] < 1e-6
    assert capsys.readouterr().out.startswith("2 pictures: ")
