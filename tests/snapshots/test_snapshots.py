"""Whole outputs of every command: in terminals of 80 and 120 columns, and piped.

A change that means to change them renews them with `make snapshots`, and the diff is part of the
review. Of the benchmarks the two that take a second are run; the others' tables are tested where
they are made.
"""

import os
import re
from pathlib import Path

import pytest
from _walk import BENCHES, VERBS, commands, make_world, masked

import marble as package

EXPECTED = Path(__file__).parent / "expected"
CASES = [(c, width) for c in commands() for width in c.widths]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


@pytest.fixture
def here(world, monkeypatch, tmp_path):
    """In the folder of the runs, without network, hub cache or a GPU."""
    monkeypatch.chdir(world)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return world


def label(width: int | None) -> str:
    return "piped" if width is None else str(width)


@pytest.mark.parametrize(("command", "width"), CASES, ids=lambda v: getattr(v, "name", label(v)))
def test_the_whole_output(marble, toy, trained, here, tmp_path, monkeypatch, command, width):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", str(width or 100))
    if width is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    words = [
        str(trained) if w == "TRAINED" else str(toy.recipe_file) if w == "TOY" else w
        for w in command.words.replace("trained-NN", str(tmp_path / "run")).split()
    ]
    result = marble(*words)
    folders = {
        str(tmp_path / "run"): "RUN",
        str(here): "WORLD",
        str(trained): "TRAINED",
        str(toy.folder): "TOY",
        str(Path(package.__file__).parent): "PACKAGE",
    }
    shown = result.out + (f"[stderr]\n{result.err}" if result.err else "")
    if width is not None:  # a path may be longer than a terminal
        lines = masked(shown, folders, numbers=False).splitlines()
        assert not [line for line in lines if len(line) > width and "/" not in line]
    text = f"$ marble {command.words}\n[status {result.status}]\n"
    text += masked(shown, folders, command.numbers)
    file = EXPECTED / f"{command.name}.{label(width)}.txt"
    if os.environ.get("MARBLE_SNAPSHOTS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert result.status == command.status, text
    assert file.is_file(), "run `make snapshots`, look at the file, and commit it"
    assert text == file.read_text(encoding="utf-8"), "`make snapshots` renews it, if this is meant"


def test_every_verb_is_walked():
    from marble.cli import app, bench

    assert {c.name for c in app.registered_commands} | {"bench"} == set(VERBS)
    assert {c.name for c in bench.app.registered_commands} == set(BENCHES)


def test_no_expected_file_is_left_over():
    wanted = {f"{command.name}.{label(width)}.txt" for command, width in CASES}
    assert {file.name for file in EXPECTED.iterdir()} == wanted


def test_nothing_private_is_in_them():
    for file in EXPECTED.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"FieldDoc|Traceback|object at 0x|/tmp/|/home/|/root/", text), file
