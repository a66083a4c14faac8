"""What `marble bench` prints for a person."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show_gradients(result: dict[str, Any]) -> None:
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
    console = Console(markup=False)
    console.print(table)
    console.print(
        f"One ordinary backward: {result['ordinary_ms']:.1f} ms. {setup['model']}, batch "
        f"{setup['batch']} × {setup['tokens']} tokens; {result['device']}, "
        f"{result['threads']} threads, torch {result['versions']['torch']}; medians of "
        f"{setup['repeats']} rounds. The forward is not timed.",
        highlight=False,
    )


def show_solver(result: dict[str, Any]) -> None:
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
    console = Console(markup=False)
    console.print(table)
    console.print(
        f"Medians of {result['repeats']} Gram matrices. A negative cosine means that the direction "
        "makes a reward worse.",
        highlight=False,
    )


def show_train(result: dict[str, Any]) -> None:
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
    console = Console(markup=False)
    console.print(speeds)
    console.print(phases)
    console.print(
        f"Recipe {setup['recipe']}, {setup['images_per_epoch']} images per epoch, "
        f"{len(setup['rewards'])} rewards; {result['device']}, {result['threads']} threads, torch "
        f"{result['versions']['torch']}; medians of {setup['rounds']} alternating rounds.",
        highlight=False,
    )


def show_loop(result: dict[str, Any]) -> None:
    console = Console(markup=False)
    steps = result.get("steps", {})
    if steps:
        both = "public" in steps
        table = Table(title="the public loop and ours" if both else "our loop", box=None)
        table.add_column("ms per picture", no_wrap=True)
        for heading in ("sampling", "decoding", "training", "pictures/s", "with rewards"):
            table.add_column(heading, justify="right")
        for name, row in steps.items():
            ms = row["ms_per_picture"]
            training = sum(v for k, v in ms.items() if k not in ("sampling", "decoding"))
            table.add_row(
                name,
                *(f"{v:.1f}" for v in (ms["sampling"], ms["decoding"], training)),
                f"{row['pictures_per_gpu_second']:.2f}",
                f"{row['pictures_per_gpu_second_with_rewards']:.2f}",
            )
        console.print(table)
        ratios = Table(title="ratios", box=None)
        ratios.add_column("")
        for heading in ("measured", "target"):
            ratios.add_column(heading, justify="right")
        for name, value in result["ratios"].items():
            target = result["targets"].get(name)
            ratios.add_row(name, f"{value:.3f}", "" if target is None else f"≥ {target:g}")
        console.print(ratios)
    for name, value in result.get("peak_memory_gb", {}).items():
        console.print(f"{name}: {value:.1f} GB at most", highlight=False)
    for name, (cause, *_) in result["failures"].items():
        console.print(f"Not measured: {name} ({cause}).", highlight=False, markup=False)
    console.print(
        f"Recipe {result['setup']['recipe']}; {result['device']}, torch "
        f"{result['versions']['torch']}; {result['seconds']:.0f} s. An epoch's step on one device.",
        highlight=False,
    )


def show_options(result: dict[str, Any]) -> None:
    console = Console()

    def told(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    drawn: dict[str, dict[str, float]] = {}
    for part in ("fp8", "steps"):
        drawn |= result.get(part, {}).get("against", {})
    if drawn:
        table = Table(title="pictures, beside those of the recipe", box=None)
        table.add_column("")
        headings = ("mean levels", "99 % within", "≤ 1 level", "by another seed", "latents", "time")
        for heading in headings:
            table.add_column(heading, justify="right")
        for name, row in drawn.items():
            shown = [
                f"{row['mean_levels']:.2f}",
                f"{row['p99_levels']:.0f}",
                f"{row['within_one_level']:.2%}",
                f"{row['by_another_seed']:.3f}" if "by_another_seed" in row else "",
                f"{row['latents']:.4f}",
                f"{row['time']:.2f}" if "time" in row else "",
            ]
            table.add_row(name, *shown)
        console.print(table)
    low = result.get("fp8", {})
    if "not measured" in low:
        told(f"fp8 not measured: {low['not measured']}.")
    elif low:
        for name, errors in low["velocity_error"].items():
            told(f"velocity, {name}: relative errors " + ", ".join(f"{e:.4f}" for e in errors))
        told(f"fp8: {low['speed']:.2f} times bf16's sampling speed, {low['layers']} layers")
    trained = result.get("extremes", {}).get("against", {})
    if trained:
        table = Table(title="gradients beside that of all", box=None)
        table.add_column("")
        for heading in ("cosine", "time"):
            table.add_column(heading, justify="right")
        for name, row in trained.items():
            time = f"{row['time']:.2f}" if "time" in row else ""
            table.add_row(name, f"{row['cosine']:.3f}", time)
        console.print(table)
    for name, (cause, *_) in result["failures"].items():
        told(f"Not measured: {name} ({cause}).")
    told(
        "Levels are of 255. By another seed: the mean difference, divided by that of pictures from "
        "other seeds. Time: by that of the recipe as it is."
    )
    setup = result["setup"]
    told(
        f"Recipe {setup['recipe']}, {setup['pictures']} pictures; {result['device']}, torch "
        f"{result['versions']['torch']}; {result['seconds']:.0f} s."
    )


def show_studio(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['setup']['pictures']} pictures, drawn and scored", box=None)
    table.add_column("part")
    for heading in ("seconds", "share"):
        table.add_column(heading, justify="right")
    total = result["seconds"]["total"]
    for part, seconds in result["seconds"].items():
        table.add_row(part, f"{seconds:.2f}", f"{seconds / total:.0%}")
    opening, setup, target = result["opening"], result["setup"], result["target"]
    console = Console(markup=False)
    console.print(table)
    console.print(
        f"Target: under {target['total_s']:g} s in total. Opening the pipeline in a fresh process "
        f"with stock diffusers: {opening['pipeline_s']:.2f} s (target: under "
        f"{target['pipeline_s']:g} s), after {opening['imports_s']:.1f} s of imports.",
        highlight=False,
    )
    console.print(
        f"{setup['steps']} steps; {result['device']}, {result['threads']} threads, torch "
        f"{result['versions']['torch']}; medians of {setup['rounds']} rounds, "
        f"{result['cpu_s']:.1f} s of processor time each.",
        highlight=False,
    )


def show_checkpoint(result: dict[str, Any]) -> None:
    Console(markup=False).print(
        f"A save takes {result['save_s']:.3f} s ({result['checkpoint_mb']:.1f} MB), a step "
        f"{result['step_s']:.2f} s: every {result['setup']['every']} steps that adds at most "
        f"{result['added']:.2%} (target {result['target']:.0%}). The run waits for "
        f"{result['blocked_s'] * 1e3:.0f} ms.",
        highlight=False,
    )
