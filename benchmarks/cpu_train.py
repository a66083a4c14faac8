"""`make train`'s run as a whole on a CPU, as it ships and in fp32: seconds, and what both reach.

    python benchmarks/cpu_train.py --out benchmarks/results/cpu_train.json     # 20 minutes

Nothing else should run meanwhile. Both end in a report page, as `make train` does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from marble.evaluation import compare_table, read_run

VARIANTS = {"bf16": "auto", "fp32": "fp32"}


def run(name: str, precision: str, folder: Path, words: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "marble", "train", "studio", f"train.precision={precision}"]
    before, began = os.times(), time.perf_counter()
    subprocess.run([*command, *words, "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    used = sum(after[2:4]) - sum(before[2:4])
    row = compare_table([folder])["rows"][1]
    found = {
        "seconds": wall,
        "processor_seconds": used,
        "steps": row["step"],
        "gains": {key: [g["lo"], g["mean"], g["hi"]] for key, g in row["gains"].items()},
        "phases": _phases(folder),
    }
    print(f"{name}: {wall:.0f} s, {used:.0f} s of processor time")
    return found


def _phases(folder: Path) -> dict[str, float]:
    """Seconds of all steps by part."""
    found: dict[str, float] = {}
    for row in read_run(folder).metrics:
        for key, value in row.items():
            if key.startswith("time/") and isinstance(value, int | float):
                part = key.removeprefix("time/")
                found[part] = found.get(part, 0.0) + float(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("words", nargs="*", help="Overrides for both, e.g. train.steps=4.")
    args = parser.parse_args()
    import torch

    report: dict[str, Any] = {
        "what": "marble train studio on a CPU, as it ships and in fp32",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "overrides": args.words,
        "runs": {},
    }
    with tempfile.TemporaryDirectory() as place:
        for name, precision in VARIANTS.items():
            report["runs"][name] = run(name, precision, Path(place) / name, args.words)
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    runs = report["runs"]
    report["times as fast"] = runs["fp32"]["seconds"] / runs["bf16"]["seconds"]
    report["within the interval"] = {
        key: lo <= runs["bf16"]["gains"][key][1] <= hi
        for key, (lo, _, hi) in runs["fp32"]["gains"].items()
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['times as fast']:.2f} times as fast; gains within fp32's interval:",
          report["within the interval"])  # fmt: skip


if __name__ == "__main__":
    main()
