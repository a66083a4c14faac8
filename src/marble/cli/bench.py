"""`marble bench`: measured times and ratios, each within one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import bench_tables
from marble.cli.common import check_device, check_file, print_json, stdout_kept
from marble.cli.options import Device, Json, RecipeWords, Trust, one_recipe
from marble.cli.usage import Command, Group, RecipeCommand
from marble.errors import MarbleError

app = typer.Typer(
    cls=Group,
    help="Measure speed on this machine; what is compared is timed in turn.",
    no_args_is_help=True,
)

Rewards = Annotated[
    str, typer.Option("--k", help="Numbers of rewards to measure, separated by commas.")
]


@app.command("gradients", cls=Command)
def gradients(
    k: Rewards = "5,64",
    repeats: Annotated[int, typer.Option(help="Rounds; figures are medians.", min=1)] = 7,
    as_json: Json = False,
) -> None:
    """All K gradients in two backward passes, against one backward and against K of them.

    Examples:

    - `marble bench gradients`

    - `marble bench gradients --k 3,16 --repeats 15`

    - `marble bench gradients --json`
    """
    from marble.jacobian.bench import bench_gradients

    numbers = _numbers(k)
    _give(lambda: bench_gradients(numbers, repeats=repeats), bench_tables.show_gradients, as_json)


@app.command("solver", cls=Command)
def solver(
    k: Rewards = "5,16,64",
    repeats: Annotated[int, typer.Option(help="Gram matrices per K.", min=1)] = 30,
    as_json: Json = False,
) -> None:
    """The exact min-norm solver: time and Frank–Wolfe gap by K, beside other solvers.

    Examples:

    - `marble bench solver`

    - `marble bench solver --k 8 --repeats 100 --json`
    """
    from marble.harmonise.bench import bench_solver

    numbers = _numbers(k)
    _give(lambda: bench_solver(numbers, repeats=repeats), bench_tables.show_solver, as_json)


@app.command("train", cls=RecipeCommand)
def train(
    words: RecipeWords = None,
    rounds: Annotated[int, typer.Option(help="Epochs of each variant.", min=1)] = 9,
    device: Device = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Images per second of MARBLE beside the plain weighted sum, and where the time goes.

    Examples:

    - `marble bench train`

    - `marble bench train studio rollout.steps=25 --json`
    """
    from marble.training.bench import bench_train

    recipe, overrides = one_recipe(words)
    _require_trust(recipe, overrides, trust)
    device = check_device(device)
    _give(
        lambda: bench_train(
            recipe or "studio", overrides, rounds=rounds, device=device, trust=trust
        ),
        bench_tables.show_train,
        as_json,
    )


@app.command("loop", cls=RecipeCommand)
def loop(
    words: RecipeWords = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file, written anew after every part.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; figures are medians.", min=1)] = 3,
    memory_limit: Annotated[
        float | None,
        typer.Option("--memory-limit", help="GB of the GPU that may be used.", min=1),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Our loop alone, times and memory."),
    ] = False,
    device: Device = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Pictures per GPU-second of the loop as public code has it, and of ours, in one run.

    The model has the recipe's size; if its files are not here, its weights are random. Calls are
    timed in turn, and steps are put together from them. Rewards are not run: their times are the
    ones `marble doctor` counts with.

    Examples:

    - `marble bench loop sd35m-5rewards --out loop.json`

    - `marble bench loop sd35m-5rewards-1gpu --memory-limit 24`

    - `marble bench loop studio --device cpu`
    """
    from marble.bench.loop import bench_loop

    recipe, overrides = one_recipe(words)
    _require_trust(recipe, overrides, trust)
    device = check_device(device)
    _give(
        lambda: bench_loop(
            recipe or "studio",
            overrides,
            device=device,
            repeats=repeats,
            memory_limit=memory_limit,
            out=check_file(out),
            quick=quick,
            trust=trust,
            say=lambda text: typer.echo(text, err=True),
        ),
        bench_tables.show_loop,
        as_json,
    )


@app.command("options", cls=RecipeCommand)
def options(
    words: RecipeWords = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file, written anew after every part.")
    ] = None,
    pictures: Annotated[int, typer.Option(help="Pictures drawn and trained on.", min=8)] = 16,
    repeats: Annotated[int, typer.Option(help="Rounds; times are medians.", min=1)] = 3,
    device: Device = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """What options that trade exactness for speed change: fp8 rollouts, fewer steps, extremes.

    The model has the recipe's size; if its files are not here, its weights are random. No reward
    is run: gradients are those of random ones.

    Examples:

    - `marble bench options sd35m-5rewards --out options.json`

    - `marble bench options studio --device cpu`
    """
    from marble.bench.options import bench_options

    recipe, overrides = one_recipe(words)
    _require_trust(recipe, overrides, trust)
    device = check_device(device)
    _give(
        lambda: bench_options(
            recipe or "studio",
            overrides,
            device=device,
            pictures=pictures,
            repeats=repeats,
            out=check_file(out),
            trust=trust,
            say=lambda text: typer.echo(text, err=True),
        ),
        bench_tables.show_options,
        as_json,
    )


@app.command("studio", cls=Command)
def studio(
    pictures: Annotated[int, typer.Option(help="Pictures per round.", min=1)] = 64,
    rounds: Annotated[int, typer.Option(help="Figures are medians of so many.", min=1)] = 5,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Drawing and scoring with the studio, part by part, and the time to open its pipeline.

    Examples:

    - `marble bench studio`

    - `marble bench studio --json > benchmarks/results/studio_speed.json`
    """
    from marble.training.bench_studio import bench_studio

    device = check_device(device)
    _give(
        lambda: bench_studio(pictures=pictures, rounds=rounds, device=device),
        bench_tables.show_studio,
        as_json,
    )


@app.command("checkpoint", cls=RecipeCommand)
def checkpoint(
    words: RecipeWords = None,
    every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 10,
    rounds: Annotated[int, typer.Option(help="Epochs and saves, in turn.", min=1)] = 5,
    folder: Annotated[
        str | None, typer.Option(help="A folder on the disk to measure; default: temporary.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """What saving the exact state adds to the time of a run.

    Examples:

    - `marble bench checkpoint`

    - `marble bench checkpoint studio train.batch_size=16 --every 5 --json`
    """
    from marble.training.bench_checkpoint import bench_checkpoint

    recipe, overrides = one_recipe(words)
    _require_trust(recipe, overrides, trust)
    device = check_device(device)
    _give(
        lambda: bench_checkpoint(
            recipe or "studio",
            overrides,
            every=every,
            rounds=rounds,
            folder=folder,
            device=device,
            trust=trust,
        ),
        bench_tables.show_checkpoint,
        as_json,
    )


def _give(
    measure: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], None], as_json: bool
) -> None:
    """Measures; then one JSON object and nothing else on stdout, or a table."""
    with stdout_kept(as_json):
        result = measure()
    if as_json:
        print_json(result)
    else:
        show(result)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise MarbleError(
            f"--k {text}: give different numbers of rewards, each at least 1, such as 5,64"
        )
    return numbers


def _require_trust(recipe: str | None, overrides: list[str], trust: bool) -> None:
    from marble.recipe import load_recipe
    from marble.recipe.trust import require_trust

    if recipe is not None:
        require_trust(load_recipe(recipe, overrides, trust=trust), recipe, overrides, trust)
