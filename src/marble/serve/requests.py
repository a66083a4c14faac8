"""A request's bytes → items, or a refusal with a status and a reason. Nothing is ever unpickled."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

from fastapi import Request

from marble.rewards.pictures import BadPicture, from_png
from marble.serve.batcher import Item
from marble.serve.settings import Settings


class Refusal(Exception):
    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def check_key(request: Request, settings: Settings) -> None:
    """Before a byte of the body is read."""
    if settings.api_key is None:
        return
    given = request.headers.get("authorization", "")
    wanted = f"Bearer {settings.api_key}"
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        raise Refusal(
            401,
            "wrong or missing API key (Authorization: Bearer …)",
            {"WWW-Authenticate": "Bearer"},
        )


async def read_body(request: Request, settings: Settings) -> bytes:
    """At most `max_body_bytes`, whatever the header says."""
    most = settings.max_body_bytes
    # A page in a browser may post other types across origins without asking first.
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise Refusal(422, "the body must be application/json")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise Refusal(413, f"the body has {declared} bytes; at most {most} are taken")
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise Refusal(413, f"the body has more than {most} bytes")
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {settings.body_s:g} s") from None
    return bytes(body)


def parse_items(body: bytes, settings: Settings) -> list[Item]:
    """`{"items": [{"image": base64 PNG, "prompt": text, "metadata": {…}}, …]}`"""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(422, "the body is not JSON") from None
    items = told.get("items") if isinstance(told, dict) else None
    if not isinstance(items, list):
        raise Refusal(422, 'the body must be an object with a list "items"')
    if not items:
        raise Refusal(422, "items: at least one")
    if len(items) > settings.max_items:
        raise Refusal(413, f"items: {len(items)}, at most {settings.max_items} are taken")
    return [_item(i, entry, settings) for i, entry in enumerate(items)]


def _item(i: int, entry: Any, settings: Settings) -> Item:
    if not isinstance(entry, dict):
        raise Refusal(422, f"items[{i}]: must be an object")
    image, prompt, metadata = (entry.get(key) for key in ("image", "prompt", "metadata"))
    if not isinstance(image, str):
        raise Refusal(422, f"items[{i}].image: must be base64 of a PNG")
    if not isinstance(prompt, str):
        raise Refusal(422, f"items[{i}].prompt: must be text")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise Refusal(422, f"items[{i}].metadata: must be an object")
    try:
        return Item(from_png(image, settings.max_pixels), prompt, metadata)
    except BadPicture as bad:
        raise Refusal(422, f"items[{i}].image: {bad}") from None
