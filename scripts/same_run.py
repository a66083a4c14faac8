"""Says whether two revisions of marble train the same model, bit for bit.

python scripts/same_run.py f408e03 .                       # a commit against the working tree
python scripts/same_run.py main my-branch train.steps=8    # overrides hold for every run
python scripts/same_run.py --cases marble,gate f408e03 .    # some of the cases; --list names them

Both revisions train the studio model for a few steps on the CPU, once per case: refresh and
ordinary steps, KL, v_old equal to v_θ and behind it. The case sd35m is `sd35m-5rewards` on a small
random checkpoint of SD3.5's layout, with the studio's prompts and rewards. Compared are every
tensor of the checkpoint (LoRA, v_old, weight EMA, optimiser, random state), the trainer's state,
the rows of metrics and the evaluations; times are left out. Exit status 1 if anything differs. Runs
of a commit are kept in --cache and used again.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
RECIPE = "studio-fast"
COMMON = [
    "train.steps=5",
    "train.timesteps_fraction=0.5",
    "balance.every=2",
    "log.harmony_every=2",
    "log.samples_every=0",
    "objective.kl=0.01",
    "objective.kl_every=2",
    "eval.at_start=false",
    "eval.prompts=1",
]
BRAKE = ["rollout.old_decay.initial=0.9", "rollout.old_decay.cap=0.95"]
CASES = {
    "marble": ["balance.method=marble"],
    "progress": ["balance.method=progress"],
    "weighted_sum": ["balance.method=weighted_sum"],
    "marble-behind": ["balance.method=marble", *BRAKE],
    "progress-behind": ["balance.method=progress", *BRAKE],
    "weighted_sum-behind": ["balance.method=weighted_sum", *BRAKE],
    "reward": ["balance.method=marble", "balance.target=reward", "balance.heldout_half=true"],
    "gate": ["balance.method=upgrad", "balance.hybrid=gate"],
    "cagrad": ["balance.method=cagrad"],
    "probe": [
        "balance.method=marble",
        "balance.probe=0.5",
        "balance.amortise=normalised",
        "train.steps_per_epoch=2",
    ],
    "gdpo": ["balance.method=gdpo"],
    "sequential": [
        "balance.method=sequential",
        "balance.stages=[{rewards: [ocr], sources: [ocr]}, {}]",
    ],
    "single": ["balance.method=single", "balance.reward=ocr"],
    "dropout": ["balance.method=dropout", "balance.dropout=0.3"],
    "marble-paper": ["balance.method=marble-paper", "balance.every=10"],
    "sd35m": [
        "model.path={tiny}",
        "model.resolution=16",
        "model.dtype=fp32",
        "data.sources={general: studio:general, ocr: studio:ocr, geneval: studio:geneval}",
        "data.prompts_per_epoch=3",
        "data.images_per_prompt=4",
        "rewards.train=[studio-clip, studio-pick, studio-aesthetic]",
        "rewards.heldout=[]",
        "balance.method=marble",
        "balance.probe=1",
        "rollout.steps=4",
        "rollout.batch_size=6",
        "train.batch_size=6",
        "eval.every=0",
        "eval.steps=4",
    ],
}
RECIPES = {"sd35m": "sd35m-5rewards"}
USUAL = list(CASES)[:6]
TIMES = ("time/", "images_per_s", "memory_gb", "seconds")

# Runs in the revision's own code, all cases in one process: imports take longer than the runs.
CHILD = """
import json, sys
from pathlib import Path
from rich.console import Console
import marble
from marble.recipe import load_recipe
from marble.training.run import train
source, jobs = Path(sys.argv[1]), json.loads(sys.argv[2])
assert Path(marble.__file__).is_relative_to(source), f"{marble.__file__} is not in {source}"
for recipe, out, overrides in jobs:
    train(load_recipe(recipe, overrides), Path(out), device="cpu", console=Console(quiet=True))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("a", nargs="?", help="a revision, or . for the working tree")
    parser.add_argument("b", nargs="?")
    parser.add_argument("overrides", nargs="*", help="section.key=value, for every run")
    parser.add_argument("--cases", help="names, with commas between; all: every one")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "same_run")
    options = parser.parse_args()
    if options.list:
        for name, settings in CASES.items():
            print(f"{'' if name in USUAL else '(all) '}{name}: {' '.join(settings)}")
        return 0
    if not options.b:
        parser.error("give two revisions")
    cases = USUAL if options.cases is None else options.cases.split(",")
    if options.cases == "all":
        cases = list(CASES)
    unknown = [name for name in cases if name not in CASES]
    if unknown:
        parser.error(f"no case called {unknown[0]!r}; --list names them")
    folders = [run(rev, cases, options.overrides, options.cache) for rev in (options.a, options.b)]
    different = 0
    atexit.register(shutil.rmtree, options.cache / f"working-tree-{os.getpid()}", True)
    for case in cases:
        found = list(differences(*(folder[case] for folder in folders)))
        different += bool(found)
        print(f"{case}: {'DIFFERENT' if found else 'identical'}")
        for line in found[:8]:
            print(f"  {line}")
    print(
        f"{len(cases) - different} of {len(cases)} runs identical, {options.a} against {options.b}"
    )
    return int(different > 0)


def run(revision: str, cases: list[str], overrides: list[str], cache: Path) -> dict[str, Path]:
    """The run folder of each case under a revision; what is in the cache is not run again."""
    commit = None if revision == "." else _git("rev-parse", f"{revision}^{{commit}}")
    # Others may use the cache at the same time: runs get their name when they are whole.
    place = cache / (commit or f"working-tree-{os.getpid()}")
    folders, jobs = {}, []
    for case in cases:
        recipe, settings = RECIPES.get(case, RECIPE), [*COMMON, *CASES[case], *overrides]
        folder = place / sha256(json.dumps([recipe, settings]).encode()).hexdigest()[:16]
        folders[case] = folder
        if not folder.exists():
            tiny = str(_tiny(cache)) if case in RECIPES else ""
            settings = [setting.replace("{tiny}", tiny) for setting in settings]
            jobs.append((recipe, f"{folder}.{os.getpid()}", settings))
    if jobs:
        print(f"training {len(jobs)} runs of {revision}", flush=True)
        place.mkdir(parents=True, exist_ok=True)
        if commit is None:
            _train(ROOT, jobs)
        else:
            with tempfile.TemporaryDirectory() as folder:
                tree = Path(folder) / "tree"
                _git("worktree", "add", "--detach", str(tree), commit)
                try:
                    _train(tree, jobs)
                finally:
                    _git("worktree", "remove", "--force", str(tree))
        for _, made, _ in jobs:
            with suppress(OSError):
                os.replace(made, made.removesuffix(f".{os.getpid()}"))
    return folders


def _tiny(cache: Path) -> Path:
    """A pipeline folder for every revision, made by the working tree."""
    folder = cache / "tiny-sd35m"
    if not (folder / "model_index.json").exists():
        from marble.models.sd3 import SD3

        SD3.tiny(folder, t5=True, tokens=77)
    return folder


def _train(tree: Path, jobs: list[Any]) -> None:
    source = str(tree / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", CHILD, source, json.dumps(jobs)], env=environment, check=True
    )


def differences(a: Path, b: Path) -> Iterator[str]:
    """What is not the same in two run folders, a line each."""
    newest = [sorted((run / "checkpoints").glob("step-*"))[-1] for run in (a, b)]
    files = sorted({f.relative_to(c) for c in newest for f in c.rglob("*.safetensors")})
    for name in files:
        if not all((folder / name).exists() for folder in newest):
            yield f"{name}: only in one of them"
            continue
        left, right = (load_file(folder / name) for folder in newest)
        for key in sorted(left.keys() | right.keys()):
            one, other = left.get(key), right.get(key)
            if one is None or other is None or one.tobytes() != other.tobytes():
                yield f"{name}: {key}"
    texts = [(folder / "state" / "trainer.json").read_text() for folder in newest]
    left, right = (json.loads(text) for text in texts)
    for state in (left, right):
        state.pop("recorder", None)
    yield from _unequal("state", left, right)
    for name in ("metrics.jsonl", "evals.jsonl"):
        rows = [[json.loads(r) for r in (run / name).read_text().splitlines()] for run in (a, b)]
        yield from _unequal(name, *rows)


def _unequal(where: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if not key.startswith(TIMES):
                yield from _unequal(f"{where} {key}", a.get(key), b.get(key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b)):
            yield from _unequal(f"{where}[{i}]", *pair)
    elif a != b:
        yield f"{where}: {a!r} against {b!r}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
