"""What several verbs share: splitting arguments, finding runs and LoRAs, printing JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

import typer
from rich.console import Console

from marble.errors import MarbleError
from marble.recipe import Recipe, load_recipe
from marble.studio import TRAINED, asset


def split_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Plain words and `key=value` words, in order. A path with `=` must begin with ./ or /."""
    plain = [w for w in words if "=" not in w or w.startswith((".", "/"))]
    return plain, [w for w in words if w not in plain]


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


@contextlib.contextmanager
def stdout_kept(enabled: bool) -> Iterator[None]:
    """What libraries and rewards print meanwhile, in Python or below, goes to stderr.

    For `--json`: stdout is to hold one object and nothing else.
    """
    if not enabled:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class _Trimmed(io.TextIOBase):
    """Standard output without the spaces that fill a table's last column."""

    def write(self, text: str) -> int:
        sys.stdout.write("\n".join(line.rstrip(" ") for line in text.split("\n")))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()


def table_console() -> Console:
    """For tables on stdout: as wide as the terminal, or as the table where there is none.

    Names and defaults may hold brackets (`[tensorboard]`, `FLUX.1 [dev]`): nothing is markup.
    """
    console = Console(markup=False)
    if console.is_terminal:
        return console
    return Console(width=1000, soft_wrap=True, markup=False, file=cast("TextIO", _Trimmed()))


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """A paragraph in the width of the terminal, 100 columns at most; words stay whole."""
    return textwrap.fill(
        text,
        min(100, shutil.get_terminal_size((100, 24)).columns),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def check_device(device: str | None) -> str | None:
    """`cpu`, `cuda` or `cuda:N`, and there."""
    if device is None or device == "cpu":
        return device
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise MarbleError(f"--device {device}: must be cpu or cuda")
    import torch

    if not torch.cuda.is_available():
        raise MarbleError(f"--device {device}: torch finds no CUDA device here; leave it out")
    return device


def make_folder(path: Path) -> Path:
    """Creates a folder for results before the work that fills it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MarbleError(f"{path}: cannot be created ({error.strerror}); choose another") from None
    return path


def check_file(path: Path | None) -> Path | None:
    """A file for results, asked for before the work that fills it: it can be written."""
    if path is None:
        return None
    make_folder(path.parent)
    if path.is_dir():
        raise MarbleError(f"{path}: a folder; give the name of a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise MarbleError(f"{path}: cannot be written; choose another")
    return path


@dataclass(frozen=True)
class Policy:
    """A model to draw with: a recipe's model, with a LoRA or untouched."""

    recipe: Recipe
    lora: Path | None
    label: str
    step: int | None = None
    """Of the run's checkpoint; None where it is not a run's."""
    passed_over: dict[str, str] = field(default_factory=dict)
    """Newer checkpoints that are damaged, and what is wrong with each."""
    origin: str = "studio"
    """Where the recipe is from."""

    def warn(self) -> None:
        """Says on stderr which checkpoint is used in place of a damaged one."""
        for name, problem in self.passed_over.items():
            typer.echo(
                f"marble: {self.label}: {name} is passed over ({problem}); using step {self.step}",
                err=True,
            )

    def record(self) -> dict[str, Any]:
        """For `--json`: what was used, and what was not."""
        return {
            "model": self.label,
            "recipe": self.recipe.name,
            "step": self.step,
            "passed_over": self.passed_over,
        }


def find_policy(
    target: str, recipe: str | None, overrides: list[str], *, trust: bool = False
) -> Policy:
    """`base`, `studio-trained`, a run folder, one of its checkpoints, or a LoRA file or folder."""
    if target == TRAINED:
        if recipe is not None:
            raise MarbleError(f"{TRAINED}: a LoRA of the studio model; leave out --recipe")
        chosen = load_recipe("studio-gpu", overrides)
        return Policy(chosen, asset("trained"), TRAINED, origin="studio-gpu")
    path = Path(target)
    is_run = target != "base" and (path / "config.yaml").is_file()
    origin = recipe or (str(path / "config.yaml") if is_run else "studio")
    if target == "base":
        return Policy(load_recipe(origin, overrides, trust=trust), None, "base", origin=origin)
    if is_run:
        from marble.training.checkpoint import best_complete, step_of

        chosen = load_recipe(origin, overrides, trust=trust)
        checkpoint, damaged = best_complete(path / "checkpoints")
        passed_over = {passed.name: problem for passed, problem in damaged.items()}
        label = f"{path.resolve().name}, {checkpoint.name}"
        return Policy(chosen, checkpoint / "lora", label, step_of(checkpoint), passed_over, origin)
    checkpoint = path.parent if path.name == "lora" else path
    run = checkpoint.resolve().parent.parent
    if (checkpoint / "lora").is_dir() and (run / "config.yaml").is_file():
        from marble.training.checkpoint import step_of

        origin = recipe or str(run / "config.yaml")
        chosen = load_recipe(origin, overrides, trust=trust)
        label = f"{run.name}, {checkpoint.name}"
        return Policy(chosen, checkpoint / "lora", label, step_of(checkpoint), origin=origin)
    is_file = path.is_file() and path.suffix == ".safetensors"
    if is_file or any(path.glob("*.safetensors")):
        return Policy(load_recipe(origin, overrides, trust=trust), path, path.stem, origin=origin)
    what = "there is no such file or folder" if not path.exists() else "holds no run and no LoRA"
    raise MarbleError(
        f"{target}: {what}; give `base`, `{TRAINED}`, a run folder or a LoRA (a folder with "
        "pytorch_lora_weights.safetensors)"
    )
