"""The web application: /health, /v1/rewards, /v1/rewards/NAME/score."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import marble
from marble.rewards.base import RewardLike
from marble.serve.batcher import Batcher
from marble.serve.requests import Refusal, check_key, parse_items, read_body
from marble.serve.settings import Settings


def make_app(rewards: Sequence[RewardLike], settings: Settings) -> FastAPI:
    """The application that serves `rewards` by their names."""
    batchers = {r.name: Batcher(r, settings.batch_size, settings.gather_s) for r in rewards}
    busy = _Busy(settings.max_requests)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for batcher in batchers.values():
            batcher.start()
        yield
        for batcher in batchers.values():
            await batcher.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> JSONResponse:
        return JSONResponse({"error": refusal.message}, refusal.status, refusal.headers)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "version": marble.__version__,
            "rewards": list(batchers),
            "requests": busy.count,
        }

    @app.get("/v1/rewards")
    async def listing(request: Request) -> dict[str, Any]:
        check_key(request, settings)
        return {"rewards": [_described(batcher) for batcher in batchers.values()]}

    @app.post("/v1/rewards/{name}/score")
    async def score(name: str, request: Request) -> dict[str, Any]:
        check_key(request, settings)
        if name not in batchers:
            raise Refusal(404, f"no reward {name!r} here; there are {', '.join(batchers)}")
        with busy:
            body = await read_body(request, settings)
            # Decoding PNGs takes long enough to hold up every other request.
            items = await asyncio.to_thread(parse_items, body, settings)
            del body
            try:
                async with asyncio.timeout(settings.deadline_s):
                    scores = await batchers[name].submit(items)
            except TimeoutError:
                raise Refusal(504, f"no score within {settings.deadline_s:g} s") from None
            except Exception as error:
                raise Refusal(500, f"{type(error).__name__}: {error}") from error
        return {"reward": name, "scores": scores}

    return app


class _Busy:
    """Counts the requests under way and turns away the one too many."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def __enter__(self) -> None:
        if self.count >= self.most:
            raise Refusal(
                503, f"{self.count} requests are under way; try again", {"Retry-After": "1"}
            )
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


def _described(batcher: Batcher) -> dict[str, Any]:
    low, high = (v if abs(v) != float("inf") else None for v in batcher.range)
    return {
        "name": batcher.name,
        "range": [low, high],
        "images": batcher.images,
        "seconds": round(batcher.seconds, 3),
    }
