"""Fixtures: the command in this process, the toy model, and a finished run of it."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "training"))
from _training_toy import Toy, make_toy

from marble.cli import main


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def marble(monkeypatch, capfd):
    """Runs the command as installed, in this process: arguments in; status and both streams out."""

    def run(*words: object) -> Result:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["marble", *map(str, words)])
        status: object = 0
        try:
            main()
        except SystemExit as leaving:
            status = leaving.code
        out, err = capfd.readouterr()
        return Result(int(status or 0), out, err)

    return run


@pytest.fixture(scope="session")
def trained(toy, tmp_path_factory) -> Path:
    """A finished run of the toy."""
    from rich.console import Console

    from marble.training.run import train

    folder = tmp_path_factory.mktemp("runs") / "first"
    train(toy.recipe(), folder, device="cpu", console=Console(quiet=True))
    return folder
