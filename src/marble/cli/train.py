"""`marble train`"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import check_device
from marble.cli.options import Device, RecipeWords, Trust, one_recipe
from marble.errors import MarbleError


def train(
    words: RecipeWords = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/RECIPE-TIME.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder, exactly where it was."),
    ] = None,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Train a model on all rewards of a recipe at once.

    Examples:

    - `marble train`: the studio model, five rewards, minutes on a CPU

    - `marble train studio balance.method=uniform train.steps=50`

    - `marble train my-recipe.yaml --out runs/mine`

    - `marble train --resume runs/mine`

    - `accelerate launch --num_processes 8 -m marble train sd35m-5rewards`
    """
    from marble.evaluation.reading import run_folder
    from marble.recipe import load_recipe
    from marble.recipe.trust import require_trust

    name, overrides = one_recipe(words)
    if resume is not None:
        if name or out is not None:
            raise MarbleError("--resume takes the recipe and the folder of the run it goes on with")
        resume = run_folder(resume)
        recipe = load_recipe(str(resume / "config.yaml"), overrides, trust=trust)
        folder = resume
    else:
        recipe = load_recipe(name or "studio", overrides, trust=trust)
        folder = out or Path("runs") / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"

    require_trust(recipe, resume or name, overrides, trust)
    from marble.training.run import train as run

    try:
        run(recipe, folder, resume=resume is not None, device=check_device(device))
    except KeyboardInterrupt:
        # The second one: at once. An ordinary exit would wait for a slow reward's thread.
        print("marble: interrupted", file=sys.stderr, flush=True)
        os._exit(130)
