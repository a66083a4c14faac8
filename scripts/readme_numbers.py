"""Writes the figures in README.md and docs from the measurements in benchmarks.

python scripts/readme_numbers.py            # rewrite the blocks between two comments each
python scripts/readme_numbers.py --check    # only say whether they are up to date (exit status 1)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results"
STUDIO = ROOT / "docs" / "studio.md"
TRAIN = "studio_train.json"
NOTES = {"ocr-read": "`ocr`, as read (not trained on)", "ocr": "`ocr`, dense"}
NOTES |= {"geneval-strict": "`studio-geneval`, strict (not trained on)"}
NOTES |= {"studio-geneval": "`studio-geneval`, partial"}
NOTES |= {name: f"`{name}` (never trained on)" for name in ("studio-clip2", "studio-realism")}


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


def gradients(results: Path = RESULTS) -> str:
    parts = []
    for name, write in KNOWN.items():
        if (results / name).is_file():
            lines = write(json.loads((results / name).read_text()))
            parts.append("\n".join([*lines, f"([{name}](benchmarks/results/{name}))"]))
    return "\n\n".join(parts)


def trained(results: Path = RESULTS) -> str:
    """One sentence on the run of `make train`: the rewards it was trained on."""
    result = json.loads((results / TRAIN).read_text())
    told = [
        f"`{name}` {signed(gain['mean'])} [{signed(gain['lo'])}, {signed(gain['hi'])}]"
        for name, gain in result["gains"].items()
        if "trained on" not in NOTES.get(name, "")
    ]
    minutes, seconds = divmod(round(result["seconds"]), 60)
    return (
        f"The run of `make train` took {minutes} min {seconds} s on two CPU cores and gave, on "
        f"held-out prompts (mean gain and 95 % interval; one seed; "
        f"[{TRAIN}](benchmarks/results/{TRAIN})): {', '.join(told)}."
    )


def trained_table(results: Path = RESULTS) -> str:
    result = json.loads((results / TRAIN).read_text())
    lines = ["| held-out prompts | base | gain | 95 % interval |", "|---|---|---|---|"]
    for name, gain in result["gains"].items():
        label, base = NOTES.get(name, f"`{name}`"), result["base"][name]["mean"]
        interval = f"{signed(gain['lo'])} … {signed(gain['hi'])}"
        lines.append(f"| {label} | {base:.3f} | {signed(gain['mean'])} | {interval} |")
    return "\n".join(lines)


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


#: (page, name of its block) → the block's text, without the two comments.
BLOCKS = {
    (README, "numbers"): gradients,
    (README, "trained"): trained,
    (STUDIO, "trained"): trained_table,
}


def replaced(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}: scripts/readme_numbers.py -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    if not rest or end not in rest:
        sys.exit(f"the page lacks the comments {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the figures in README and docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    options = parser.parse_args()
    stale = 0
    for (file, name), write in BLOCKS.items():
        page = file.read_text()
        fresh = replaced(page, name, write())
        if options.check and fresh != page:
            told = f"{file.name} is out of date: run python scripts/readme_numbers.py"
            print(told, file=sys.stderr)
            stale = 1
        elif not options.check:
            file.write_text(fresh)
    return stale


if __name__ == "__main__":
    sys.exit(main())
