"""`marble sample`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli.common import check_device, find_policy, make_folder, print_json, stdout_kept
from marble.cli.completion import target_words
from marble.cli.options import Device, Json, Prefer, Trust, chosen, preference, told
from marble.errors import MarbleError


def sample(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="`base`, `studio-trained`, a run folder, or a LoRA.",
            autocompletion=target_words,
        ),
    ],
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="One or more prompts.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the PNGs.")] = Path(
        "samples"
    ),
    recipe: Annotated[
        str | None, typer.Option(help="Recipe of the model; default: studio, or the run's.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the first picture; the next ones count up.")
    ] = 0,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Pictures of each prompt.")
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Sampling steps; default: the recipe's.")
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="dpm or euler; default: the recipe's. euler is diffusers' own."),
    ] = None,
    scale: Annotated[
        int, typer.Option(min=1, max=64, help="Enlarge the PNGs so many times (nearest).")
    ] = 1,
    prefer: Prefer = None,
    device: Device = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Draw pictures with a trained or an untouched model.

    Examples:

    - `marble sample base 'a sign that says "TEA"' 'a photo of two cats'`

    - `marble sample studio-trained 'a sign that says "TEA"' --scale 4`

    - `marble sample runs/mine 'a photo of a red apple' -n 4 --scale 4`

    - `marble sample runs/steered 'a red sign' --prefer ocr=1.5,aesthetic=0.5`
    """
    from marble.sampling import draw_prompts, slider_weights

    if not 0 <= seed < 2**63:
        raise MarbleError(f"--seed {seed}: must be from 0 to 2^63 - 1")
    for prompt in prompts:
        if any("\ud800" <= c <= "\udfff" for c in prompt):
            raise MarbleError(f"prompt {prompt!a}: not text; is the terminal's encoding UTF-8?")
    overrides = [] if sampler is None else [f"eval.sampler={sampler}"]
    wanted = preference(prefer)
    policy = find_policy(target, recipe, overrides, trust=trust)
    slider_weights(policy.lora, wanted)  # refused before a folder is made
    device = check_device(device)
    policy.warn()
    make_folder(out)
    with stdout_kept(as_json):
        files = draw_prompts(
            policy.recipe,
            policy.lora,
            [p for p in prompts for _ in range(count)],
            out,
            seed=seed,
            steps=steps,
            scale=scale,
            device=device,
            prefer=wanted,
        )
    if as_json:
        print_json({"files": [str(f) for f in files], **policy.record(), **chosen(wanted)})
    else:
        if policy.lora is not None:
            typer.echo(f"marble: drawn with {told(policy.label, wanted)}", err=True)
        for file in files:
            typer.echo(file)
