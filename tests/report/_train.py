"""Runs that are really trained, for the slow tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

METHODS = ("marble", "uniform", "weighted_sum", "progress")


def train(out: Path, *words: str) -> Path:
    """One real run of the command line, on one core."""
    command = [sys.executable, "-m", "marble", "train", *words, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--device", "cpu"], env=environment, check=True, timeout=3600)
    return out


def train_methods(root: Path) -> list[Path]:
    """Four methods on the studio model, a few steps each."""
    words = ["log.harmony_every=2", "eval.every=2"]
    return [train(root / m, "studio-fast", f"balance.method={m}", *words) for m in METHODS]
