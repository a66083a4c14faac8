"""`marble merge`"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import find_policy, make_folder, print_json
from marble.cli.options import Json, Prefer, Trust, chosen, preference
from marble.errors import MarbleError


def merge(
    targets: Annotated[
        list[str], typer.Argument(metavar="TARGET", help="Run folders or LoRAs of one model.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new LoRA.")] = Path(
        "merged"
    ),
    prefer: Prefer = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="W,W,…", help="One weight per LoRA; default: equal ones with sum 1."),
    ] = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Write one ordinary LoRA: a steered run at chosen slider weights, or several runs averaged.

    The sum is exact: ranks add up, nothing is approximated.

    Examples:

    - `marble merge runs/steered --prefer ocr=1.5,aesthetic=0.5 --out legible`

    - `marble merge runs/ocr runs/clip --weights 0.7,0.3 --out soup`
    """
    from marble.models.soups import merged_files, write_merged

    policies = [find_policy(target, None, [], trust=trust) for target in targets]
    missing = [target for target, policy in zip(targets, policies) if policy.lora is None]
    if missing:
        raise MarbleError(f"{missing[0]}: has no LoRA; name run folders or LoRAs")
    for policy in policies:
        policy.warn()
    folders = [policy.lora for policy in policies if policy.lora is not None]
    shares = _shares(weights, len(folders))
    wanted = preference(prefer)
    state, config = merged_files(folders, shares, prefer=wanted)
    make_folder(out)
    file, rank = write_merged(out, state, config), int(config["r"])
    if as_json:
        record = {"file": str(file), "rank": rank, "weights": shares, "of": targets}
        print_json(record | chosen(wanted))
    else:
        typer.echo(f"{file} (rank {rank})")


def _shares(text: str | None, count: int) -> list[float]:
    if text is None:
        return [1.0 / count] * count
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(map(math.isfinite, found)):
        raise MarbleError(f"--weights {text}: must be numbers, like 0.5,0.25,0.25")
    if len(found) != count:
        raise MarbleError(f"--weights {text}: give one weight per LoRA, {count} in all")
    return found
