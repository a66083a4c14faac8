"""Starting the server: rewards are loaded first, so that it listens only when it can score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marble.errors import MarbleError
from marble.rewards import RewardSet, load
from marble.serve.settings import Settings

BACKLOG = 128
"""Connections that the kernel keeps waiting; so many may be taken in before one is looked at."""
RESERVED_FILES = BACKLOG + 128
"""Files left for everything but admitted connections."""


def serve(
    rewards: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    settings: Settings,
    device: str | None = None,
) -> None:
    """Loads the rewards and answers requests until interrupted."""
    try:
        import uvicorn  # noqa: F401

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
    where = {} if device is None else {"device": device}
    loaded = RewardSet(
        [load(name, isolate=settings.isolate, **where, **options.get(name, {})) for name in rewards]
    )
    try:
        make_server(make_app(loaded.rewards, settings), settings).run()
    except SystemExit:  # uvicorn has said why, e.g. that the port is taken
        raise MarbleError(
            f"cannot listen on {settings.host}:{settings.port}; choose another --port"
        ) from None
    finally:
        loaded.close()


def make_server(app: Any, settings: Settings, **options: Any) -> Any:
    """A uvicorn server with limits on connections, their heads and the log; not started."""
    import uvicorn

    from marble.serve.door import Door
    from marble.serve.sparing import spare_the_log

    most = min(settings.max_connections, _files() - RESERVED_FILES)
    door = Door(max(1, most), settings.max_per_address, settings.head_s)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=door.protocol(),
        ws="none",
        backlog=BACKLOG,
        access_log=False,
        timeout_graceful_shutdown=10,
        **{"log_level": "info", **options},
    )
    spare_the_log()
    return uvicorn.Server(config)


def _files() -> int:
    """How many files this process may have open, after asking for as many as connections take."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
