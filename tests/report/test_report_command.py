"""`marble report` as a command, and what its browser tests say where there is no browser."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _browser import LEFT_OUT
from _runs import Spec, make_run

MARBLE = [sys.executable, "-m", "marble", "report"]
ONE_BROWSER_TEST = Path(__file__).with_name("test_report_browser.py")


def test_a_folder_that_is_no_run_is_one_line_and_status_2(tmp_path: Path) -> None:
    told = subprocess.run([*MARBLE, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert told.returncode == 2 and told.stdout == ""
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith(f"marble: {tmp_path}: not a run folder")
    assert not (tmp_path / "report.html").exists()


def test_watch_writes_again_until_the_run_is_done(tmp_path: Path) -> None:
    live = Spec(steps=6, logged=3, eval_every=3, prompts=3, status="running")
    folder = make_run(tmp_path / "live", live)
    page = folder / "report.html"
    command = [*MARBLE, str(folder), "--watch", "--every", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        deadline = time.monotonic() + 120
        while not page.is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        first = page.read_text()
        assert "step 3 of 6" in first and 'http-equiv="refresh"' in first
        make_run(folder, Spec(steps=6, eval_every=3, prompts=3))
        told, _ = watching.communicate(timeout=120)
    assert watching.returncode == 0 and told.strip() == str(page)
    last = page.read_text()
    assert "step 6 of 6" in last and 'http-equiv="refresh"' not in last


@pytest.mark.parametrize(
    ("change", "status", "line"),
    [
        ({"MARBLE_NO_BROWSER": "1"}, 0, LEFT_OUT),
        ({"PATH": "", "MARBLE_NO_BROWSER": ""}, 1, "no chromium: `apt-get install chromium`"),
    ],
)
def test_no_browser_is_said_in_one_line(change: dict[str, str], status: int, line: str) -> None:
    command = [sys.executable, "-m", "pytest", str(ONE_BROWSER_TEST), "-k", "script", "-q"]
    told = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        env={**os.environ, **change},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == status, told.stdout
    assert line in told.stdout and "Traceback" not in told.stdout
