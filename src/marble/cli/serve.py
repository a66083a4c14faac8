"""`marble serve`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from marble.cli.common import check_device
from marble.cli.options import Device
from marble.errors import MarbleError


def serve(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="REWARD... [REWARD.OPTION=VALUE]...", help="Rewards, and options of them."
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback needs a key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = 8765,
    device: Device = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the API key.")
    ] = "MARBLE_API_KEY",
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures scored at once.")] = 32,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests under way before one is told to come back.")
    ] = 128,
    max_mb: Annotated[float, typer.Option(min=0.01, help="Largest request, in MB.")] = 64,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds a request may take.")] = 300,
    isolate: Annotated[
        bool,
        typer.Option(help="Each reward in a process of its own, which the deadline really ends."),
    ] = True,
) -> None:
    """Score pictures for trainers elsewhere: rewards over HTTP, as JSON with PNGs.

    Examples:

    - `marble serve ocr geneval --port 8765`

    - `marble serve hpsv2 hpsv2.dtype=bf16 --device cuda`

    - `MARBLE_API_KEY=… marble serve geneval --host 0.0.0.0`

    A recipe asks for one with `reward: remote` and the options `url` and `reward`.
    """
    from marble.recipe.yamlio import parse
    from marble.rewards.http import key_from
    from marble.serve import serve as run
    from marble.serve.settings import Settings

    names = [word for word in words if "=" not in word]
    options: dict[str, dict[str, Any]] = {}
    for text in [word for word in words if "=" in word]:
        key, _, value = text.partition("=")
        name, dot, option = key.rpartition(".")
        if not dot:
            raise MarbleError(f"'{text}': an option looks like REWARD.OPTION=VALUE")
        options.setdefault(name, {})[option] = parse(value, f"option {key}")
    settings = Settings(
        host=host,
        port=port,
        api_key=key_from(api_key_env),
        batch_size=batch_size,
        max_requests=max_requests,
        max_body_bytes=int(max_mb * 1e6),
        deadline_s=deadline,
        isolate=isolate,
    )
    device = check_device(device)
    if device is None:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    run(names, options, settings, device)
