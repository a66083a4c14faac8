"""The web application: /health, /v1/rewards, /v1/rewards/NAME/score."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

import marble
from marble.rewards.base import RewardLike
from marble.rewards.guard import said
from marble.serve.batcher import Batcher, Item
from marble.serve.budget import Budget
from marble.serve.refusal import Refusal
from marble.serve.requests import (
    check_groups,
    check_key,
    decode_items,
    parse_body,
    pixel_bytes,
    read_body,
)
from marble.serve.settings import Settings


def make_app(rewards: Sequence[RewardLike], settings: Settings) -> FastAPI:
    """The application that serves `rewards` by their names."""
    batchers = {
        r.name: Batcher(r, settings.batch_size, settings.gather_s, settings.deadline_s)
        for r in rewards
    }
    busy, budget = _Busy(settings.max_requests), Budget(settings.max_memory_bytes)

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

    @app.exception_handler(ClientDisconnect)
    async def hung_up(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # which nobody reads

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "version": marble.__version__,
            "rewards": list(batchers),
            "compare": [name for name, batcher in batchers.items() if batcher.compares],
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
        with budget.share() as share:
            body = await read_body(request, settings, share)
            with busy:
                # Decoding takes long enough to hold up every other request.
                entries = await asyncio.to_thread(parse_body, body, settings)
                del body
                share.take(pixel_bytes(entries, settings))
                items = await asyncio.to_thread(decode_items, entries, settings)
                del entries
                if batchers[name].compares:
                    check_groups(items)
                scores = await _answered(request, batchers[name], items, settings.deadline_s)
        return {"reward": name, "scores": scores}

    return app


async def _answered(
    request: Request, batcher: Batcher, items: list[Item], deadline_s: float
) -> list[float | None]:
    """The scores, unless the client hangs up or the deadline passes; then the job is cancelled."""
    scored = asyncio.ensure_future(batcher.submit(items))
    left = asyncio.ensure_future(request.receive())  # the body is read: only a hang-up can come
    try:
        await asyncio.wait({scored, left}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if scored.done():
            return scored.result()
        if left.done():
            raise ClientDisconnect
        raise Refusal(504, f"no score within {deadline_s:g} s")
    except (Refusal, ClientDisconnect):
        raise
    except Exception as error:
        raise Refusal(500, said(error)) from error
    finally:
        scored.cancel()
        left.cancel()


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
