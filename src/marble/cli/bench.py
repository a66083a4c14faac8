"""`marble bench`: measured ratios, each within one run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from marble.cli.common import check_device, print_json, split_overrides, stdout_kept
from marble.errors import MarbleError

app = typer.Typer(help="Measure: every figure is a ratio within one run.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Rewards = Annotated[
    str, typer.Option("--k", help="Numbers of rewards to measure, separated by commas.")
]


@app.command("gradients")
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

    result = bench_gradients(_numbers(k), repeats=repeats)
    if as_json:
        print_json(result)
    else:
        _show_gradients(result)


@app.command("solver")
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

    result = bench_solver(_numbers(k), repeats=repeats)
    if as_json:
        print_json(result)
    else:
        _show_solver(result)


@app.command("train")
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="Default: studio."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Epochs of each variant.", min=1)] = 9,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    as_json: Json = False,
) -> None:
    """Images per second of MARBLE beside the plain weighted sum, and where the time goes.

    Examples:

    - `marble bench train`

    - `marble bench train studio rollout.steps=25 --json`
    """
    from marble.training.bench import bench_train

    recipe, overrides = split_overrides(words or [])
    if len(recipe) > 1:
        raise MarbleError(f"one recipe at a time; got {', '.join(recipe)}")
    with stdout_kept(as_json):
        result = bench_train(
            recipe[0] if recipe else "studio",
            overrides,
            rounds=rounds,
            device=check_device(device),
        )
    if as_json:
        print_json(result)
    else:
        _show_train(result)


@app.command("checkpoint")
def checkpoint(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="Default: studio."),
    ] = None,
    every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 10,
    rounds: Annotated[int, typer.Option(help="Epochs and saves, in turn.", min=1)] = 5,
    folder: Annotated[
        str | None, typer.Option(help="A folder on the disk to measure; default: temporary.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    as_json: Json = False,
) -> None:
    """What saving the exact state adds to the time of a run.

    Examples:

    - `marble bench checkpoint`

    - `marble bench checkpoint studio train.batch_size=16 --every 5 --json`
    """
    from marble.training.bench_checkpoint import bench_checkpoint

    recipe, overrides = split_overrides(words or [])
    if len(recipe) > 1:
        raise MarbleError(f"one recipe at a time; got {', '.join(recipe)}")
    with stdout_kept(as_json):
        result = bench_checkpoint(
            recipe[0] if recipe else "studio",
            overrides,
            every=every,
            rounds=rounds,
            folder=folder,
            device=check_device(device),
        )
    if as_json:
        print_json(result)
        return
    Console().print(
        f"A save takes {result['save_s']:.3f} s ({result['checkpoint_mb']:.1f} MB), a step "
        f"{result['step_s']:.2f} s: every {every} steps that adds at most {result['added']:.2%} "
        f"(target {result['target']:.0%}). The run waits for {result['blocked_s'] * 1e3:.0f} ms.",
        highlight=False,
    )


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


def _show_gradients(result: dict[str, Any]) -> None:
    table = Table(title="all K gradients, in units of one ordinary backward", box=None)
    for heading in ("K", "two passes", "ms", "K backwards", "ms", "Gram error"):
        table.add_column(heading, justify="right")
    for label, row in result["results"].items():
        table.add_row(
            label.removeprefix("K="),
            f"{row['two_pass_ratio']:.2f}×",
            f"{row['two_pass_ms']:.1f}",
            f"{row['retained_ratio']:.1f}×",
            f"{row['retained_ms']:.1f}",
            f"{row['gram_relative_error']:.0e}",
        )
    setup = result["setup"]
    console = Console()
    console.print(table)
    console.print(
        f"One ordinary backward: {result['ordinary_ms']:.1f} ms. {setup['model']}, batch "
        f"{setup['batch']} × {setup['tokens']} tokens; {result['device']}, "
        f"{result['threads']} threads, torch {result['versions']['torch']}; medians of "
        f"{setup['repeats']} rounds. The forward is not timed.",
        highlight=False,
    )


def _show_solver(result: dict[str, Any]) -> None:
    table = Table(title="min-norm point of K unit gradients that conflict", box=None)
    for heading in ("K", "solver", "ms", "worst gap", "worst cosine"):
        table.add_column(heading, justify="left" if heading == "solver" else "right")
    for row in result["results"]:
        table.add_row(
            str(row["k"]),
            row["solver"],
            f"{row['median_ms']:.2f}",
            f"{row['worst_gap']:.0e}",
            f"{row['worst_cosine']:+.1e}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"Medians of {result['repeats']} Gram matrices. A negative cosine means that the direction "
        "makes a reward worse.",
        highlight=False,
    )


def _show_train(result: dict[str, Any]) -> None:
    speeds = Table(title="training, by the weighted sum's speed", box=None)
    for heading in ("method", "images/s", "ratio", "target"):
        speeds.add_column(heading, justify="left" if heading == "method" else "right")
    for name, speed in result["images_per_s"].items():
        ratio, target = result["ratio"].get(name, 1.0), result["target"].get(name)
        shown = "" if target is None else f"≥ {target:.2f}"
        speeds.add_row(name, f"{speed:.2f}", f"{ratio:.3f}", shown)
    kinds = result["profile"]
    phases = Table(title="where the time goes", box=None)
    phases.add_column("phase")
    for kind in kinds:
        phases.add_column(f"{kind} epoch", justify="right")
        phases.add_column("share", justify="right")
    for phase in next(iter(kinds.values())):
        cells = []
        for seconds in kinds.values():
            cells += [f"{seconds[phase]:.2f} s", f"{seconds[phase] / seconds['whole']:.0%}"]
        phases.add_row(phase, *cells)
    setup = result["setup"]
    console = Console()
    console.print(speeds)
    console.print(phases)
    console.print(
        f"Recipe {setup['recipe']}, {setup['images_per_epoch']} images an epoch, "
        f"{len(setup['rewards'])} rewards; {result['device']}, {result['threads']} threads, torch "
        f"{result['versions']['torch']}; medians of {setup['rounds']} alternating rounds.",
        highlight=False,
    )
