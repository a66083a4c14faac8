"""What `marble diagnose` says of runs that were made ill, as the table of docs/diagnose.md.

    python scripts/diagnosis.py     # 30 trainings in the toy world: 4 minutes on a core

Writes benchmarks/results/diagnosis.json and renews the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "diagnosis.json"
sys.path.insert(0, str(ROOT / "tests" / "diagnose"))
from _ill import told  # noqa: E402


def main() -> None:
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for one in told(Path(folder)):
            print(one.case, one.seed, one.said_ailment, "" if one.right else "WRONG", flush=True)
            found.append({**asdict(one), "right": one.right})
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    subprocess.run([sys.executable, ROOT / "scripts" / "readme_numbers.py"], check=True)


if __name__ == "__main__":
    main()
