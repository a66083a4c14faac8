"""Starting the server: rewards are loaded first, so that it listens only when it can score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marble.errors import MarbleError
from marble.rewards import RewardSet, load
from marble.serve.settings import Settings


def serve(
    rewards: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    settings: Settings,
    device: str | None = None,
) -> None:
    """Loads the rewards and answers requests until interrupted."""
    try:
        import uvicorn

        from marble.serve.app import make_app
    except ImportError as error:
        raise MarbleError(
            f'marble serve needs {error.name}: pip install "marble-rl[serve]"'
        ) from None
    if not rewards:
        raise MarbleError("name at least one reward to serve")
    unknown = [name for name in options if name not in rewards]
    if unknown:
        raise MarbleError(f"options for {unknown[0]}, which is not among {', '.join(rewards)}")
    loaded = RewardSet([load(name, **options.get(name, {})) for name in rewards]).rewards
    if device is not None:
        loaded = [reward.to(device) for reward in loaded]
    app = make_app(loaded, settings)
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_level="info", access_log=False
    )
    server = uvicorn.Server(config)
    try:
        server.run()
    except SystemExit:  # uvicorn has said why, e.g. that the port is taken
        raise MarbleError(
            f"cannot listen on {settings.host}:{settings.port}; choose another --port"
        ) from None
