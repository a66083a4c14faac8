"""What a run reached on its held-out prompts, as the JSON that README and docs quote.

python scripts/studio_result.py runs/studio-… -o benchmarks/results/studio_train.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from marble.evaluation import compare_table, read_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    run, row = read_run(args.run), compare_table([args.run])["rows"][1]
    environment = json.loads((args.run / "environment.json").read_text())
    result = {
        "recipe": run.config.get("name"),
        "method": run.method,
        "seed": run.config["train"]["seed"],
        "steps": row["step"],
        "seconds": run.seconds,
        "device": environment["device"],
        "packages": environment["packages"],
        "base": {e.step: e.record["rewards"] | e.record["heldout"] for e in run.evals}[0],
        "gains": row["gains"],
        "worst_gain": row["worst_gain"],
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(args.out)


if __name__ == "__main__":
    main()
