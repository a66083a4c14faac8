"""`marble prompts`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import print_json
from marble.cli.completion import kind_words
from marble.cli.options import Json


def prompts(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="geneval or ocr.", autocompletion=kind_words)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; default: data/KIND.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Training prompts; default: 20000 (ocr: 10000)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same prompts.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write training and test prompts in the public layouts, where the SD3.5 recipes look.

    Examples:

    - `marble prompts geneval`

    - `marble prompts ocr --out data/ocr --count 5000`
    """
    from marble.prompts import write_prompts

    done = write_prompts(kind, out or Path("data") / kind, count=count, seed=seed, force=force)
    if as_json:
        print_json({"files": [str(f) for f in done.files], "train": done.train, "test": done.test})
        return
    for file, number in zip(done.files, (done.train, done.test)):
        typer.echo(f"{number:>6} prompts  {file}")
    typer.echo(done.about)
