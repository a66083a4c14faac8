"""The walk: every command as a user types it, and what may differ from machine to machine."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from _runs import Spec, make_run

VERBS = (
    *(
        "train",
        "eval",
        "compare",
        "report",
        "diagnose",
        "geometry",
        "sample",
        "merge",
        "study",
        "serve",
    ),
    *("prompts", "recipes", "doctor", "bench"),
)
BENCHES = ("gradients", "solver", "train", "loop", "options", "studio", "checkpoint")
WIDTHS = (80, 120, None)
"""Columns of the terminal; None: piped."""


@dataclass(frozen=True)
class Command:
    """Words to type; `numbers`: figures are masked too, as they are measured or trained."""

    name: str
    words: str
    status: int = 0
    numbers: bool = False
    widths: tuple[int | None, ...] = WIDTHS


def commands() -> list[Command]:
    found = [Command("help", "--help"), Command("version", "--version", widths=(None,))]
    found += [Command(f"help-{verb}", f"{verb} --help") for verb in VERBS]
    found += [Command(f"help-bench-{b}", f"bench {b} --help", widths=(80,)) for b in BENCHES]
    found += [
        Command("recipes", "recipes"),
        Command("recipes-json", "recipes --json", widths=(None,)),
        Command("recipes-one", "recipes studio-fast", widths=(None,)),
        Command("recipes-fields", "recipes --fields"),
        Command("recipes-fields-part", "recipes --fields balance optim.lr"),
        Command("recipes-fields-json", "recipes --fields balance.rho --json", widths=(None,)),
        Command("recipes-fields-wrong", "recipes --fields balence", 2, widths=(None,)),
        Command("recipes-wrong", "recipes studio-fats", 2, widths=(None,)),
        Command("recipes-key", "recipes studio balance.rhoo=1", 2, widths=(None,)),
        Command("recipes-value", "recipes studio optim.lr=fast", 2, widths=(None,)),
        Command("doctor", "doctor studio", numbers=True),
        Command("doctor-sd35", "doctor sd35m-5rewards", 1, numbers=True),
        Command("doctor-gpu", "doctor studio --gpu a100 --gpus 4", numbers=True),
        Command("doctor-gpu-wrong", "doctor --gpu abacus", 2, widths=(None,)),
        Command("prompts", "prompts ocr -n 20 --force"),
        Command("prompts-geneval", "prompts geneval -n 20 --force", widths=(None,)),
        Command("prompts-wrong", "prompts pickscore", 2, widths=(None,)),
        Command("compare", "compare marble uniform weighted-sum"),
        Command("compare-one", "compare marble"),
        Command("compare-many", "compare marble uniform weighted-sum a-run-with-a-long-name gdpo"),
        Command("compare-none", "compare nowhere", 2, widths=(None,)),
        Command("diagnose", "diagnose marble"),
        Command("diagnose-flat", "diagnose flat"),
        Command("diagnose-json", "diagnose flat --json", widths=(None,)),
        Command("diagnose-none", "diagnose nowhere", 2, widths=(None,)),
        Command("report", "report marble -o page.html", widths=(None,)),
        Command("report-none", "report nowhere", 2, widths=(None,)),
        Command("eval", "eval TRAINED --device cpu", numbers=True),
        Command("eval-studio", "eval base eval.prompts=1 train.precision=fp32", 0, True, (80,)),
        Command("eval-none", "eval nowhere", 2, widths=(None,)),
        Command("sample", "sample TRAINED cat --out drawn", widths=(None,)),
        Command("train", "train TOY train.steps=1 --out trained-NN --device cpu", 0, True, (None,)),
        Command("train-resume-none", "train --resume nowhere", 2, widths=(None,)),
        Command("train-two", "train studio studio-fast", 2, widths=(None,)),
        Command("study", "study mine.yaml --no-run --no-page --out study", numbers=True),
        Command("study-none", "study nowhere.yaml", 2, widths=(None,)),
        Command("geometry", "geometry TRAINED --batches 4 --device cpu", 0, True, (80, None)),
        Command("bench-solver", "bench solver --k 3 --repeats 1", 0, True, (80,)),
        Command("bench-gradients", "bench gradients --k 3 --repeats 1", 0, True, (80,)),
        Command("serve-wrong", "serve nothing", 2, widths=(None,)),
        Command("verb-wrong", "trian", 2),
        Command("option-wrong", "compare --steps 3", 2),
        Command("option-field", "train --steps 3", 2, widths=(None,)),
        Command("argument-missing", "sample base", 2, widths=(None,)),
        Command("value-wrong", "sample base cat -n 0", 2, widths=(None,)),
        Command("bench-wrong", "bench lop", 2, widths=(None,)),
        Command("doctor-fp8", "doctor studio rollout.fp8=true", 1, True, (80, None)),
        Command("doctor-gpus-alone", "doctor --gpus 4", 2, widths=(None,)),
        Command("recipes-file", "recipes nowhere.yaml", 2, widths=(None,)),
        Command("recipes-objective", "recipes studio balance.method=distil", 2, widths=(None,)),
        Command("train-field", "train studio train.steps", 2, widths=(None,)),
        Command("merge", "merge TRAINED TRAINED --out merged", widths=(None,)),
        Command("merge-none", "merge nowhere --out merged", 2, widths=(None,)),
    ]
    return found


def make_world(folder: Path) -> None:
    """Run folders that look real, the same on every machine."""
    spec = Spec(steps=20, eval_every=20)
    runs = {"marble": 0.8, "uniform": 0.79, "weighted-sum": 0.6, "gdpo": 0.5, "flat": 0.0}
    runs["a-run-with-a-long-name"] = 0.7
    for name, gain in runs.items():
        make_run(folder / name, replace(spec, gain=gain, method=name.replace("-", "_")))
    cells = "{marble: {}, uniform: {balance.method: uniform}}"
    (folder / "mine.yaml").write_text(f"recipe: studio\nseeds: [0, 1]\ncells: {cells}\n")
    for seed in (0, 1):
        for name in ("marble", "uniform"):
            cell = replace(spec, gain=runs[name] + 0.05 * seed, method=name)
            make_run(folder / "study" / f"{name}-seed{seed}", cell)


MASKS = [
    (re.compile(r"\d+ CPU cores|CPU with \d+ cores, no CUDA device"), "CORES"),
    (re.compile(r"(packages: )python \d.*"), r"\1VERSIONS"),
    (re.compile(r"marble \d+\.\d+\.\d+\w*"), "marble VERSION"),
    (re.compile(r"(?<=\d)\+(cpu|cu\d+|rocm[\d.]+)"), "+BUILD"),  # of torch
    (re.compile(r"[A-Z][a-z]{2} \d\d:\d\d"), "DAY TIME"),
    (re.compile(r"\n*\r?batches .*━.*"), ""),
    (re.compile(r"(time: )about .* (in all on CORES)"), r"\1TIMES \2"),
]


def masked(text: str, folders: dict[str, str], numbers: bool) -> str:
    """Without colours, versions, places and, where asked, figures; their width stays."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    if numbers:
        text = re.sub(r"\n {10,}(?=\S)", " ", text)  # where a line breaks depends on the figures
    for place, name in folders.items():
        text = text.replace(place, name)
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    if numbers:
        text = re.sub(r"(?<![\w/.:-])[-+−]?\d[\d.,:]*(e[-+]?\d+)?%?(?![\w/-])", "N", text)
        text = re.sub(r"(?<=\S)  +", "  ", text)
        text = re.sub(r"^ +", "", text, flags=re.MULTILINE)  # titles are centred over figures
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
