"""The soak in short: `scripts/soak_serve.py` for 20 seconds. The full one takes five minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak_serve.py"


@pytest.mark.slow
def test_every_answered_score_is_right_under_abuse(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--seconds", "20", "--json", tmp_path / "found.json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["wrong"] == 0 and found["answered"] > found["clients"]
    assert found["half_open_connections"] > found["half_open"]
    assert found["recovery_s"] < 10 and found["tracebacks"] == 0 and found["log_bytes"] < 200_000
