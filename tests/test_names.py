"""Rules, objectives and families are known by name in their own file and their line of the list.

Everything else asks what they declare: one of your own then counts as much as a built-in one.
"""

import ast
import inspect
from pathlib import Path

import marble
from marble.harmonise import RULES
from marble.models.registry import FAMILIES, resolve
from marble.objectives import OBJECTIVES, objective_class

ROOT = Path(marble.__file__).parent
LISTS = ["harmonise/_registry.py", "objectives/registry.py", "models/registry.py"]
#: Where they are listed, and where they are offered to users by name.
OFFERED = [*LISTS, "harmonise/__init__.py", "objectives/__init__.py"]
#: Classes that others are made of, or that something else uses under its own right.
PARTS = {
    "Uniform": ["harmonise/_gated.py"],
    "Fixed": ["harmonise/_merged.py"],
    "MGDA": ["harmonise/_marble.py"],
    # The base of every rule with sliders, your own included.
    "Steerable": [
        "recipe/schema.py",
        "training/closing.py",
        "training/preferences.py",
        "training/setup.py",
    ],
    "Progress": ["harmonise/_hybrid.py", "recipe/balance.py"],  # `hybrid` measures it for any rule
    "NFT": ["jacobian/bench.py"],  # what is timed
}
#: Choices of what to compare with what, which are nobody's behaviour.
CHOICES = {
    "training/bench.py": {"weighted_sum"},
    "bench/side.py": {"weighted_sum"},
    "geometry/rules.py": {"marble", "mgda", "upgrad", "uniform", "fixed"},
    "geometry/gradients.py": {"uniform"},
    "geometry/table.py": {"marble"},
}
#: Names that are also words: strings of these count only where something is compared with them.
WORDS = {"marble", "single", "progress", "steer"}


def own_file(thing: type) -> str:
    return Path(inspect.getfile(thing)).relative_to(ROOT).as_posix()


THINGS = {
    **{name: rule for name, rule in RULES.items()},
    **{name: objective_class(name) for name in OBJECTIVES},
    **{resolve(target).pipeline: resolve(target) for target in FAMILIES},
}
FILES = [p for p in sorted(ROOT.rglob("*.py")) if "studio" not in p.parts]


def strings(tree: ast.Module):
    """(text, line, whether something is compared with it), without what is said to people."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    compared = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.MatchValue)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value, node.lineno, id(node) in compared


def named_in(path: Path) -> list[str]:
    file = path.relative_to(ROOT).as_posix()
    if file in OFFERED:
        return []
    tree = ast.parse(path.read_text())
    found = [
        f"{file}, line {line}: {text!r}"
        for text, line, compared in strings(tree)
        if text in THINGS and own_file(THINGS[text]) != file
        if (compared or text not in WORDS) and text not in CHOICES.get(file, ())
    ]
    classes = {thing.__name__: thing for thing in THINGS.values()}
    found += [
        f"{file}, line {node.lineno}: import {name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        if node.level or str(node.module).startswith("marble")
        for name in node.names
        if name.name in classes and own_file(classes[name.name]) != file
        if file not in PARTS.get(name.name, ())
    ]
    return found


def test_nothing_else_knows_them_by_name():
    assert [line for path in FILES for line in named_in(path)] == []


def test_the_test_sees_them():
    told = list(strings(ast.parse("if method == 'single': pass\nnames = ['single']")))
    assert told == [("single", 1, True), ("single", 2, False)]
