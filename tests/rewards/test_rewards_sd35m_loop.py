"""The full-size benchmark's own code, on tiny models: five steps, a resume, an export."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_sd35m_loop_runs_resumes_and_exports(tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "sd35m_loop.py"), "--tiny", "--out", out]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert [row["step"] for row in result["steps"]] == [1, 2, 3, 4, 5]
    assert ["time/refresh" in row for row in result["steps"]] == [True, False, False, True, False]
    assert result["phases"]["optimiser step, refresh"]["calls"] == 2
    assert result["phases"]["run: resume, 2 more steps"]["calls"] == 1
    exported = result["exported_lora"]
    assert exported["pictures_finite"]
    assert exported["pictures_change_with_lora"] > 0
    assert exported["pictures_change_after_unloading"] == 0
