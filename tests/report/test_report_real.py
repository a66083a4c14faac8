"""Pages of runs that were really trained: four methods on the studio model, a few steps each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marble.report import write

METHODS = ("marble", "uniform", "weighted_sum", "progress")


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("real")
    runs = [root / method for method in METHODS]
    for method, run in zip(METHODS, runs):
        words = ["studio-fast", f"balance.method={method}", "log.harmony_every=2"]
        command = [sys.executable, "-m", "marble", "train", *words, "--out", str(run)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--device", "cpu"], env=environment, check=True, timeout=600)
    return runs


@pytest.mark.slow
def test_pages_of_real_runs_open(real_runs: list[Path], open_page, tmp_path: Path) -> None:
    one = open_page(write(real_runs[:1], tmp_path / "one.html"))
    assert one.locator(".plot").count() >= 10
    assert one.locator("#picture-list > li").count() > 0
    four = open_page(write(real_runs, tmp_path / "four.html"))
    text = four.inner_text("body")
    assert all(method in text for method in METHODS)
