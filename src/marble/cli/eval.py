"""`marble eval`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from marble.cli.common import (
    check_device,
    find_policy,
    make_folder,
    print_json,
    stdout_kept,
    table_console,
)
from marble.cli.completion import target_words
from marble.cli.options import Device, Json, Prefer, Trust, chosen, preference, told


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="`base`, `studio-trained`, a run folder, or a LoRA.",
            autocompletion=target_words,
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe; default: studio, or the run's.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the pictures and their scores."),
    ] = None,
    prefer: Prefer = None,
    device: Device = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Score held-out prompts with fixed seeds: every reward, with intervals and by source.

    Examples:

    - `marble eval base --recipe studio --json`

    - `marble eval runs/mine eval.prompts=96 --out pictures`
    """
    from marble.recipe.trust import require_trust
    from marble.sampling import slider_weights
    from marble.training.measure import measure

    wanted = preference(prefer)
    policy = find_policy(target, recipe, overrides or [], trust=trust)
    require_trust(policy.recipe, policy.origin, overrides or [], trust)
    slider_weights(policy.lora, wanted)  # refused before a folder is made
    device = check_device(device)
    if _is_main():
        policy.warn()
    if out is not None:
        make_folder(out)
    with stdout_kept(as_json):
        record = measure(policy.recipe, policy.lora, out=out, device=device, prefer=wanted)
    if not _is_main():  # all processes know the result, one tells it
        return
    record = {**policy.record(), **chosen(wanted), **record}
    if as_json:
        print_json(record)
        return
    sources = list(record["by_source"])
    title = f"{told(policy.label, wanted)}: held-out prompts, fixed seeds"
    table = Table(title=title, box=None, padding=(0, 1))
    table.add_column("score", no_wrap=True)
    for heading in ("mean", "95 % interval", "n", *sources):
        table.add_column(heading, justify="right", no_wrap=True)
    for group in ("rewards", "heldout"):
        if group == "heldout" and record[group]:
            table.add_row(Text("not trained on", style="dim"))
        for name, entry in record[group].items():
            means = [record["by_source"][s].get(name) for s in sources]
            table.add_row(
                name,
                _number(entry["mean"]),
                "–" if entry["mean"] is None else f"{entry['lo']:.3f} … {entry['hi']:.3f}",
                str(entry["n"]),
                *(_number(m) for m in means),
            )
    table_console().print(table)
    for name, entry in record.get("geneval", {}).items():
        table_console().print(_geneval(name, entry))
    if out is not None:
        typer.echo(f"pictures and scores in {out}")


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _geneval(name: str, entry: dict[str, Any]) -> Table:
    """By tag, with the official figure (mean over the six tags) and the mean over pictures."""
    table = Table(title=f"{name} by tag", box=None, padding=(0, 1))
    table.add_column("tag", no_wrap=True)
    for heading in ("mean", "n"):
        table.add_column(heading, justify="right")
    for tag, found in entry["tags"].items():
        table.add_row(tag, _number(found["mean"]), str(found["n"]))
    table.add_row("mean over tags", _number(entry["mean_over_tags"]))
    table.add_row("over pictures", _number(entry["micro_average"]), str(entry["n"]))
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
