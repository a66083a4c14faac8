"""What is in the package, and that its facts are stated once."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from setuptools import find_packages

import marble

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version_number():
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "marble.__version__"}
    source = (ROOT / "src" / "marble" / "__init__.py").read_text()
    assert f'__version__ = "{marble.__version__}"' in source
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == marble.__version__
    assert re.search(
        rf"^## {re.escape(marble.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_the_wheel_leaves_out_what_only_makes_the_studio():
    settings = PROJECT["tool"]["setuptools"]["packages"]["find"]
    found = find_packages(str(ROOT / "src"), exclude=settings["exclude"])
    assert "marble.studio" in found and "marble.rewards.geneval" in found
    left_out = [name for name in find_packages(str(ROOT / "src")) if name not in found]
    assert sorted(left_out) == ["marble.studio.pretrain", "marble.studio.world"]
    for path in (ROOT / "src" / "marble").rglob("*.py"):
        if not {"pretrain", "world"} & set(path.relative_to(ROOT / "src" / "marble").parts[:-1]):
            text = path.read_text()  # nothing in the wheel needs what is not
            assert "marble.studio.pretrain" not in text and "marble.studio.world" not in text, path


def test_every_room_with_data_ships_it():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["marble"]
    shipped = {p for pattern in patterns for p in (ROOT / "src" / "marble").glob(pattern)}
    kept = re.compile(r"\.(py|pyc)$|__pycache__|studio/(assets/)?world/")
    for path in (ROOT / "src" / "marble").rglob("*"):
        if path.is_file() and not kept.search(path.as_posix()):
            assert path in shipped, f"{path} is in no wheel"


def test_contributors_files_are_whole():
    for name in ("bug", "flat-curve", "idea", "config"):
        text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text()
        assert yaml.safe_load(text)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    subject, *others = hooks["repos"][0]["hooks"]
    assert re.search(subject["entry"], "x" * 72) and subject["stages"] == ["commit-msg"]
    assert not re.search(subject["entry"], "x" * 71 + "\n\n" + "y" * 90)
    checks = [hook["entry"].removeprefix(".venv/bin/") for hook in others]
    made = (ROOT / "Makefile").read_text()
    assert {c.split()[0] for c in checks} == {"ruff", "mypy", "python"}
    assert all(f"$(BIN)/{tool}" in made for tool in ("ruff check", "ruff format", "mypy"))
    runs = (ROOT / ".ci" / "run").read_text()
    assert "make check" in runs and "make test" in runs
    for path in re.findall(r"\]\(([\w./-]+)\)", (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / path).exists(), path


def test_every_pin_allows_each_python_that_is_promised():
    """A pin that needs 3.11.5 fails to install with Debian's 3.11.2, in the resolver's words."""
    [oldest] = SpecifierSet(PROJECT["project"]["requires-python"])
    installed = {canonicalize_name(d.name): d for d in distributions()}
    checked = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        pin = Requirement(line) if "==" in line and not line.startswith("#") else None
        found = installed.get(canonicalize_name(pin.name)) if pin else None
        if found and pin.specifier.contains(found.version):
            wanted = SpecifierSet(found.metadata["Requires-Python"] or "")
            assert wanted.contains(f"{oldest.version}.0"), f"{line} needs Python {wanted}"
            checked.append(pin.name)
    assert {"torch", "diffusers", "numpy"} <= set(checked)
