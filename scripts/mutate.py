"""Small faults put into the engine one at a time: do the tests notice?

    python scripts/mutate.py                      # 70 mutants of the engine's rooms
    python scripts/mutate.py --count 300 --seed 1 --rooms jacobian objectives
    python scripts/mutate.py --from 36 --to 70     # a part of the same sample, elsewhere
    python scripts/mutate.py --only 'balance/plan.py:142:+→-'
    python scripts/mutate.py --show 'balance/plan.py:142:+→-'

Each mutant is one change to the syntax tree of one module (an operator, a constant, a comparison, a
condition, an index): made from the source as it is now, so that the script needs no upkeep. The
module is copied to a folder of its own with the change in it, and only the tests of the rooms that
rest on it run. A mutant is *killed* when a test fails. The score and the survivors are printed and
written as JSON.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import queue
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import hypothesis  # noqa: F401  (these are imported once, and not for every mutant)
import peft  # noqa: F401
import pytest
import scipy.optimize  # noqa: F401
import torch.distributed.fsdp
import torch.multiprocessing  # noqa: F401
from torch.utils.checkpoint import checkpoint  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "marble"
#: Room → the tests that have to notice a fault in it, the nearest first.
TESTS = {
    "objectives": ["tests/objectives", "tests/balance"],
    "jacobian": ["tests/jacobian", "tests/balance"],
    "balance": ["tests/balance"],
    "harmonise": ["tests/harmonise", "tests/balance"],
    "advantage.py": ["tests/advantage", "tests/balance"],
}
LEFT_OUT = ("bench.py", "__init__.py")
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
CALLS = {"max": "min", "min": "max", "any": "all", "all": "any", "clamp_min": "clamp_max",
         "maximum": "minimum", "minimum": "maximum", "sum": "mean", "mean": "sum"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    file: str
    """Relative to the package."""
    line: int
    what: str
    number: int
    """Of the place in the module, in the order of the syntax tree."""

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.what}"

    @property
    def room(self) -> str:
        return self.file.split("/")[0]


def changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every place that can be changed, and what the change is called; applying it is `apply`."""
    for node in _walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
            yield node, f"{_name(node.op)}→{_name(SWAPS[type(node.op)]())}"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, f"{_name(node.ops[0])}→{_name(SWAPS[type(node.ops[0])]())}"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            yield node, f"drop {_name(node.op)}"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            yield node, f"{node.value}→{_other(node.value)}"
        elif isinstance(node, ast.If | ast.IfExp):
            yield node, "negate if"
        elif isinstance(node, ast.Call) and _called(node) in CALLS:
            yield node, f"{_called(node)}→{CALLS[_called(node)]}"


def apply(tree: ast.Module, number: int) -> ast.Module:
    """A copy of the module with change `number` made."""
    tree = copy.deepcopy(tree)
    node, _ = list(changes(tree))[number]
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if not isinstance(node.op, ast.Not) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        node.value = _other(node.value)
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Call):
        new = CALLS[_called(node)]
        if isinstance(node.func, ast.Attribute):
            node.func.attr = new
        elif isinstance(node.func, ast.Name):
            node.func.id = new
    return ast.fix_missing_locations(tree)


def all_mutants(rooms: list[str]) -> list[Mutant]:
    found = []
    for room in rooms:
        path = SOURCE / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.name in LEFT_OUT:
                continue
            name = file.relative_to(SOURCE).as_posix()
            for number, (node, what) in enumerate(changes(ast.parse(file.read_text()))):
                found.append(Mutant(name, getattr(node, "lineno", 0), what, number))
    return found


def killed_by(
    mutant: Mutant, place: Path, seconds: float, skip: list[str], cost: dict[str, float]
) -> str | None:
    """Which test noticed, None for a survivor. `place` holds a copy of the package."""
    file = place / "marble" / mutant.file
    whole = (SOURCE / mutant.file).read_text()
    file.write_text(ast.unparse(apply(ast.parse(whole), mutant.number)))
    try:
        status, said = _pytest(place, seconds, "-x", *skip, *_in_order(mutant, cost))
    finally:
        file.write_text(whole)
    failed = [x for x in said.splitlines() if x.startswith(("FAILED", "ERROR"))]
    return (failed[0][:160] if failed else status) if status else None


def _in_order(mutant: Mutant, cost: dict[str, float]) -> list[str]:
    """Files of tests: those of the module's name, then the others, room by room, cheapest first."""
    stem = Path(mutant.file).stem.strip("_")
    files = []
    for number, room in enumerate(TESTS[mutant.room]):
        for path in (ROOT / room).glob("test_*.py"):
            name = str(path.relative_to(ROOT))
            named = number == 0 and stem in path.stem
            files.append((not named, number, cost.get(name, 0.0), name))
    return [name for *_, name in sorted(files)]


def _pytest(place: Path, seconds: float, *words: str) -> tuple[str, str]:
    """(what went wrong, output) of tests on the package in `place`.

    In a fork of this process, which has the heavy imports behind it, but nothing of marble.
    """
    output = place / "said.txt"
    child = os.fork()
    if child == 0:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = str(place)
        sys.path.insert(0, str(place))
        sys.dont_write_bytecode = True
        common = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--durations=0"]
        common += ["-k", "not distributed and not compile and not bench and not script"]
        os._exit(int(pytest.main([*common, *words])))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return (f"status {code}" if code else ""), output.read_text(errors="replace")
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "did not end", ""


def _without_mutant(place: Path, rooms: list[str]) -> tuple[list[str], dict[str, float]]:
    """Words that leave out tests that fail anyway, and the seconds that each file takes."""
    skip: list[str] = []
    cost: dict[str, float] = {}
    for room in rooms:
        _, said = _pytest(place, 3600, room)
        failed = [x.split()[1] for x in said.splitlines() if x.startswith("FAILED")]
        skip += [word for name in failed for word in ("--deselect", name)]
        for seconds, file in re.findall(r"^ *([\d.]+)s \w+ +(\S+?\.py)::", said, re.MULTILINE):
            cost[file] = cost.get(file, 0.0) + float(seconds)
        print(f"{room}: {len(failed)} tests fail without a mutant and are left out", flush=True)
    return skip, cost


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--count", type=int, default=70, help="mutants to try, drawn at random")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--from", type=int, default=1, dest="first", help="first of the sample")
    words.add_argument("--to", type=int, help="last of the sample")
    words.add_argument("--only", nargs="+", help="the mutants of these names, and no others")
    words.add_argument("--clean", action="store_true", help="all tests pass without a mutant")
    words.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    words.add_argument("--rooms", nargs="+", choices=TESTS, default=list(TESTS))
    words.add_argument("--seconds", type=float, default=900, help="most for one mutant")
    words.add_argument("--out", type=Path, help="write the result here as JSON")
    words.add_argument("--show", help="print the module with the mutant of this name, and stop")
    chosen = words.parse_args()
    mutants = all_mutants(chosen.rooms)
    if chosen.show:
        (mutant,) = [m for m in mutants if m.name == chosen.show][:1]
        source = ast.parse((SOURCE / mutant.file).read_text())
        print(ast.unparse(apply(source, mutant.number)))
        return
    sample = random.Random(chosen.seed).sample(mutants, min(chosen.count, len(mutants)))
    numbered = list(enumerate(sample, 1))[chosen.first - 1 : chosen.to]
    if chosen.only:
        numbered = list(enumerate((m for m in mutants if m.name in chosen.only), 1))
    sample = [mutant for _, mutant in numbered]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        places: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(chosen.jobs):
            place = Path(folder) / str(job)
            shutil.copytree(SOURCE, place / "marble", ignore=shutil.ignore_patterns("__pycache__"))
            places.put(place)
        rooms = sorted({tests for mutant in sample for tests in TESTS[mutant.room]})
        skip, cost = ([], {}) if chosen.clean else _without_mutant(place, rooms)

        def judge(numbered: tuple[int, Mutant]) -> str | None:
            number, mutant = numbered
            place = places.get()
            found = killed_by(mutant, place, chosen.seconds, skip, cost)
            places.put(place)
            print(f"{number}  {mutant.name}  {found or 'SURVIVED'}", flush=True)
            return found

        with ThreadPoolExecutor(chosen.jobs) as pool:
            verdicts = list(pool.map(judge, numbered))
    survivors = [mutant for mutant, found in zip(sample, verdicts) if found is None]
    score = 1 - len(survivors) / len(sample)
    print(f"{score:.1%} of {len(sample)} mutants killed (of {len(mutants)} there are), ", end="")
    print(f"{time.monotonic() - started:.0f} s; survivors:")
    for mutant in survivors:
        print(f"  {mutant.name}")
    if chosen.out:
        result = {"score": score, "tried": len(sample), "there_are": len(mutants)}
        result["survivors"] = [asdict(mutant) for mutant in survivors]
        chosen.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The tree without what is only said to people: error texts, annotations, defaults' types."""
    yield node
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.Raise) or field in ("annotation", "returns", "decorator_list"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _walk(part)


def _name(op: ast.AST) -> str:
    return type(op).__name__


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _other(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 10 if value else 1.0


if __name__ == "__main__":
    main()
