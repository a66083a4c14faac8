"""scripts/average_ratio.py against the same by hand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "average_ratio.py"


def run(folder: Path, name: str, **scores: float) -> None:
    (folder / name).mkdir(parents=True)
    rows = [
        {"policy": "base", "rewards": {key: {"mean": 1.0} for key in scores}},
        {"policy": "trained", "rewards": {key: {"mean": mean} for key, mean in scores.items()}},
    ]
    (folder / name / "evals.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def ratio(folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), str(folder), "one", "two"]
    return subprocess.run(words, capture_output=True, text=True)


def test_percent_ahead_with_its_interval(tmp_path):
    run(tmp_path, "one-seed3", ocr=1.1, clip=3.0)
    run(tmp_path, "two-seed3", ocr=1.0, clip=2.0)  # +10 % and +50 %
    run(tmp_path, "one-seed4", ocr=1.0, clip=2.4)
    run(tmp_path, "two-seed4", ocr=1.0, clip=2.0)  # 0 % and +20 %
    run(tmp_path, "one-seed5", ocr=9.0, clip=9.0)  # without its rival
    done = ratio(tmp_path)
    # 30 and 10: mean 20, t(0.975, 1) = 12.706 times the standard error 10
    assert done.stdout.strip() == "one against two: +20.0 % ± 127.1 (2 seeds)", done.stderr


@pytest.mark.parametrize("seeds", [[], [3]])
def test_too_few_runs_are_told(seeds, tmp_path):
    for seed in seeds:
        run(tmp_path, f"one-seed{seed}", ocr=1.0)
        run(tmp_path, f"two-seed{seed}", ocr=1.0)
    done = ratio(tmp_path)
    assert done.returncode == 2 and f"two seeds of both cells are needed, {len(seeds)} found" in (
        done.stderr
    )
