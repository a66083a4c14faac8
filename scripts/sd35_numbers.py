"""Writes the figures in docs/sd35.md from benchmarks/results/sd35m_loop_h200.json.

python scripts/sd35_numbers.py            # rewrite the block between the two comments
python scripts/sd35_numbers.py --check    # only say whether it is up to date (exit status 1)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "sd35.md"
RESULT = ROOT / "benchmarks" / "results" / "sd35m_loop_h200.json"
BEGIN, END = "<!-- numbers: scripts/sd35_numbers.py -->", "<!-- end of numbers -->"

#: Phase of the benchmark → what the page calls it.
PHASES = {
    "load rewards": "loading the reward models",
    "load pipeline": "loading the pipeline",
    "encode prompts": "encoding prompts, encoders in main memory",
    "sample latents": "sampling",
    "decode pictures": "decoding",
    "rewards, all": "all rewards",
    "optimiser step, ordinary": "optimiser step, ordinary",
    "optimiser step, refresh": "optimiser step that solves for the balance",
    "checkpoint and evaluation": "checkpoints and evaluations, with their drawing",
}


def conditions(result: dict[str, Any]) -> str:
    setup, memory = result["setup"], result["memory"]
    versions = result["versions"]
    return (
        f"{result['device']}, torch {versions['torch']} limited to {setup['memory_limit_gb']} GB, "
        f"{result['date'][:10]}; {setup['samples_per_epoch']} pictures per epoch, "
        f"{setup['timesteps_per_sample']} timesteps per picture, random weights. Torch had "
        f"allocated {memory['peak_gb']:.1f} GB at most. On the device it was "
        f"{memory['peak_on_device_gb']:.1f} GB, because torch keeps what it may "
        f"({memory['peak_reserved_gb']:.1f} GB) and CUDA itself takes "
        f"{memory['cuda_itself_gb']:.1f} GB."
    )


def costs(result: dict[str, Any]) -> list[str]:
    lines = ["| phase | calls | seconds in all | peak allocated |", "|---|---|---|---|"]
    for name, label in PHASES.items():
        phase = result["phases"][name]
        lines.append(
            f"| {label} | {phase['calls']} | {phase['seconds_total']:.1f} "
            f"| {phase['peak_gb']:.1f} GB |"
        )
    return lines


def largest(result: dict[str, Any]) -> str:
    """Over the rewards in fp32; the stored figures of bf16 are of an earlier way to compute it."""
    found = [f for name, f in result["score_changes"].items() if name.endswith("fp32")]
    alone, on_cpu = (max(f[key] for f in found) for key in ("alone", "on_cpu"))
    return (
        f"A score in fp32 changed by at most {alone:.1e} with the rest of its batch, and by "
        f"{on_cpu:.1e} between GPU and CPU."
    )


def block(result: dict[str, Any]) -> str:
    """The block's text, without the two comments."""
    lora = result["exported_lora"]
    parts = [
        [conditions(result)],
        costs(result),
        [
            f"The exported LoRA ({lora['lora_parameters'] / 1e6:.1f} million parameters) opened in "
            f"diffusers alone. With it a picture's values (0 … 1) changed by "
            f"{lora['pictures_change_with_lora']:.4f} in the mean; once it was unloaded, they "
            f"differed by {lora['pictures_change_after_unloading']:g} from those before."
        ],
        [f"{largest(result)} [All figures](../benchmarks/results/sd35m_loop_h200.json)."],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts)


def replaced(page: str, text: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or END not in rest:
        sys.exit(f"docs/sd35.md lacks the comments {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the figures in docs/sd35.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    options = parser.parse_args()
    page = PAGE.read_text()
    fresh = replaced(page, block(json.loads(RESULT.read_text())))
    if options.check:
        if fresh != page:
            print("docs/sd35.md is out of date: python scripts/sd35_numbers.py", file=sys.stderr)
        return int(fresh != page)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
