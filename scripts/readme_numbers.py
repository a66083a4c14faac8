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
STUDIO, ENGINE = ROOT / "docs" / "studio.md", ROOT / "docs" / "engine.md"
DIAGNOSE = ROOT / "docs" / "diagnose.md"
TRAIN = "studio_train.json"
NOTES = {"ocr-read": "`ocr`, as read (not trained on)", "ocr": "`ocr`, dense"}
NOTES |= {"geneval-strict": "`studio-geneval`, strict (not trained on)"}
NOTES |= {"studio-geneval": "`studio-geneval`, partial"}
NOTES |= {name: f"`{name}` (never trained on)" for name in ("studio-clip2", "studio-realism")}


def sd35m_gradients(result: dict[str, Any]) -> tuple[str, list[list[str]]]:
    """SD3.5 Medium's architecture on a GPU: whole training steps."""
    ratios, memory = result["ratios"], result["memory_ratios"]
    ks = ("K=5", "K=64")
    error = result["error K=5 against separate bf16 backwards"]["gram_relative"]
    about = (
        f"GPU: a whole training step at SD3.5 Medium's size, in units of an ordinary step "
        f"({result['device']}, bf16, batch {result['setup']['batch']}, 512 px, random weights, "
        f"{result['date'][:10]}; relative error of the Gram matrix {error:.0e})"
    )
    separate = f"{ratios['retained K=5 / ordinary']:.2f}×"
    return about, [
        ["GPU, two passes: time", *(f"{ratios[k]['refresh / ordinary']:.2f}×" for k in ks)],
        ["GPU, two passes: memory", *(f"{memory[k]['refresh / ordinary']:.2f}×" for k in ks)],
        ["GPU, K separate backwards: time", separate, ""],
    ]


def gradients_cpu(result: dict[str, Any]) -> tuple[str, list[list[str]]]:
    """`marble bench gradients --json`."""
    rows = result["results"]
    about = f"CPU: one backward, in units of an ordinary one ({result['threads']} cores)"
    kinds = {"two passes": "two_pass_ratio", "K separate backwards": "retained_ratio"}
    return about, [
        [f"CPU, {label}: time", *(f"{rows[k][key]:.2f}×" for k in ("K=5", "K=64"))]
        for label, key in kinds.items()
    ]


KNOWN = {"sd35m_gradients.json": sd35m_gradients, "gradients_cpu.json": gradients_cpu}


def gradients(results: Path = RESULTS) -> str:
    """One table of what is there, and a sentence on where it comes from."""
    rows, told = [], []
    for name, read in KNOWN.items():
        if (results / name).is_file():
            about, found = read(json.loads((results / name).read_text()))
            rows += found
            told.append(f"{about} ([{name}](../benchmarks/results/{name}))")
    lines = ["| all K gradients | K = 5 | K = 64 |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", ". ".join(told) + "."])


def days() -> str:
    """How long the published run takes, as `marble doctor` estimates it."""
    sys.path.insert(0, str(ROOT / "src"))
    from marble.duration import GPUS, estimate_time
    from marble.memory import estimate
    from marble.recipe import load_recipe

    small, large = (load_recipe(f"sd35m-5rewards{end}") for end in ("-1gpu", ""))
    lines = [
        f"| {large.train.steps} steps, estimated from one H200 | 1 GPU | 4 GPUs | 8 GPUs |",
        "|---|---|---|---|",
    ]
    for key, label in (
        ("a100-40", "A100, 40 GB"),
        ("a100", "A100, 80 GB"),
        ("h100", "H100, 80 GB"),
    ):
        recipe = large if estimate(large).peak <= GPUS[key].memory_gb else small
        told = [estimate_time(recipe, GPUS[key], n).total / 86400 for n in (1, 4, 8)]
        label += "" if recipe is large else " (half of the timesteps)"
        shown = (f"{n:.0f} day{'s' if round(n) != 1 else ''}" for n in told)
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


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
        f"`make train` took {minutes} min {seconds} s on two CPU cores. Gains on held-out prompts, "
        f"with 95 % intervals ([one seed](benchmarks/results/{TRAIN})): {', '.join(told)}."
    )


def trained_table(results: Path = RESULTS) -> str:
    result = json.loads((results / TRAIN).read_text())
    lines = ["| held-out prompts | base | gain | 95 % interval |", "|---|---|---|---|"]
    for name, gain in result["gains"].items():
        label, base = NOTES.get(name, f"`{name}`"), result["base"][name]["mean"]
        interval = f"{signed(gain['lo'])} … {signed(gain['hi'])}"
        lines.append(f"| {label} | {base:.3f} | {signed(gain['mean'])} | {interval} |")
    worst = result["worst_gain"]
    told = (
        f"Seed {result['seed']}, {result['steps']} steps of 96 pictures. `{worst['reward']}` "
        f"gained least: {worst['sigma']:.2f} σ [{worst['lo']:.2f}, {worst['hi']:.2f}]."
    )
    return "\n".join([*lines, "", told])


def diagnosed(results: Path = RESULTS) -> str:
    """What `marble diagnose` said first of each run that was made ill."""
    found = json.loads((results / "diagnosis.json").read_text())
    cases: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        cases.setdefault(one["case"], []).append(one)
    lines = ["| made ill | right | what it said (seed 0) |", "|---|---|---|"]
    for case, runs in cases.items():
        right = f"{sum(one['right'] for one in runs)} of {len(runs)}"
        said = f"{runs[0]['said_ailment']}: {runs[0]['said']}" if runs[0]["said"] else "nothing"
        lines.append(f"| {case} | {right} | {said} |")
    right = sum(one["right"] for one in found)
    return "\n".join(
        [*lines, "", f"Its first finding was the right one in {right} of {len(found)}."]
    )


def walked(results: Path = RESULTS) -> str:
    """The time that each of README's commands took in a fresh clone."""
    result = json.loads((results / "walk.json").read_text())
    lines = ["| command | seconds | processor seconds | what there is then |", "|---|---|---|---|"]
    for row in result["walk"]:
        used = f"{row['seconds']:.0f} | {row['processor_seconds']:.0f}"
        lines.append(f"| `{row['command']}` | {used} | `{row['left']}` |")
    seconds, used, others = (
        sum(row[key] for row in result["walk"])
        for key in ("seconds", "processor_seconds", "of_others")
    )
    lines.append(f"| all | {seconds:.0f} | {used:.0f} | |")
    about = (
        f"{result['date']}, commit {result['commit']}, {result['cores']} cores, Python "
        f"{result['python']}. Other programs used {others / seconds / result['cores']:.0%} of the "
        f"machine meanwhile."
    )
    if result["steps"]:
        about += f" Trainings had {result['steps']} steps, fewer than the recipe's."
    return "\n".join([*lines, "", about.replace("%", " %")])


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


#: (page, name of its block) → the block's text, without the two comments.
BLOCKS = {
    (ENGINE, "numbers"): gradients,
    (README, "days"): days,
    (README, "trained"): trained,
    (STUDIO, "trained"): trained_table,
    (STUDIO, "walk"): walked,
    (DIAGNOSE, "diagnosis"): diagnosed,
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
