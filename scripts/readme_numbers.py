"""Writes the figures in README.md from the measurements in benchmarks/results.

python scripts/readme_numbers.py            # rewrite the block between the two comments
python scripts/readme_numbers.py --check    # only say whether it is up to date (exit status 1)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- numbers: scripts/readme_numbers.py -->", "<!-- end of numbers -->"


def sd35m_gradients(result: dict[str, Any]) -> list[str]:
    """SD3.5 Medium's architecture on a GPU: whole training steps."""
    ratios, memory = result["ratios"], result["memory_ratios"]
    refresh = {k: f"{ratios[k]['refresh / ordinary']:.2f}" for k in ("K=5", "K=64")}
    used = {k: f"{memory[k]['refresh / ordinary']:.2f}" for k in ("K=5", "K=64")}
    error = result["error K=5 against separate bf16 backwards"]["gram_relative"]
    return [
        f"A whole training step at SD3.5 Medium's size (random weights, bf16, batch "
        f"{result['setup']['batch']}, 512 px; {result['device']}, torch "
        f"{result['versions']['torch']}, {result['date'][:10]}), in units of an ordinary step:",
        "",
        "| all K gradients | K = 5 | K = 64 |",
        "|---|---|---|",
        f"| two passes: time | {refresh['K=5']}× | {refresh['K=64']}× |",
        f"| two passes: peak memory | {used['K=5']}× | {used['K=64']}× |",
        f"| K separate backwards: time | {ratios['retained K=5 / ordinary']:.2f}× | |",
        "",
        f"Relative error of the Gram matrix against separate bf16 backwards: {error:.0e}.",
    ]


def gradients_cpu(result: dict[str, Any]) -> list[str]:
    """`marble bench gradients --json`."""
    rows = result["results"]
    names = list(rows)
    return [
        f"`marble bench gradients` on {result['threads']} CPU cores (torch "
        f"{result['versions']['torch']}), in units of one ordinary backward:",
        "",
        "| all K gradients | " + " | ".join(name.replace("=", " = ") for name in names) + " |",
        "|---|" + "---|" * len(names),
        *(
            f"| {label} | " + " | ".join(f"{rows[n][key]:.2f}×" for n in names) + " |"
            for label, key in (
                ("two passes", "two_pass_ratio"),
                ("K separate backwards", "retained_ratio"),
            )
        ),
    ]


KNOWN = {"sd35m_gradients.json": sd35m_gradients, "gradients_cpu.json": gradients_cpu}


def block(results: Path = RESULTS) -> str:
    """The block's text, without the two comments."""
    parts = []
    for name, write in KNOWN.items():
        if (results / name).is_file():
            lines = write(json.loads((results / name).read_text()))
            parts.append("\n".join([*lines, f"([{name}](benchmarks/results/{name}))"]))
    return "\n\n".join(parts)


def replaced(readme: str, text: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or END not in rest:
        sys.exit(f"README.md lacks the comments {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the figures in README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    options = parser.parse_args()
    readme = README.read_text()
    fresh = replaced(readme, block())
    if options.check:
        if fresh != readme:
            print("README.md is out of date: run python scripts/readme_numbers.py", file=sys.stderr)
        return int(fresh != readme)
    README.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
