"""A request's bytes → items, or a refusal with a status and a reason. Nothing is ever unpickled."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

from fastapi import Request

from marble.data import text_problem
from marble.rewards.pictures import BadPicture, from_png, png_size
from marble.serve.batcher import Item
from marble.serve.budget import Share
from marble.serve.refusal import Refusal
from marble.serve.settings import Settings


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


async def read_body(request: Request, settings: Settings, share: Share) -> bytes:
    """At most `max_body_bytes`, whatever the header says; paid for as it arrives."""
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
                if len(body) + len(chunk) > most:
                    raise Refusal(413, f"the body has more than {most} bytes")
                share.take(len(chunk))
                body += chunk
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {settings.body_s:g} s") from None
    return bytes(body)


def parse_body(body: bytes, settings: Settings) -> list[dict[str, Any]]:
    """`{"items": [{"image": base64 PNG, "prompt": text, "metadata": {…}, "group": …}, …]}`"""
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
    for i, entry in enumerate(items):
        problem = _problem(entry, settings)
        if problem:
            raise Refusal(422, f"items[{i}]{problem}")
    return items


def pixel_bytes(entries: list[dict[str, Any]], settings: Settings) -> int:
    """What the pictures will take in memory, by their headers."""
    total = 0
    for i, entry in enumerate(entries):
        try:
            width, height = png_size(entry["image"], settings.max_pixels)
        except BadPicture as bad:
            raise Refusal(422, f"items[{i}].image: {bad}") from None
        total += 3 * width * height
    return total


def decode_items(entries: list[dict[str, Any]], settings: Settings) -> list[Item]:
    """Entries without fault, with their pictures decoded."""
    items = []
    for i, entry in enumerate(entries):
        try:
            image = from_png(entry["image"], settings.max_pixels)
        except BadPicture as bad:
            raise Refusal(422, f"items[{i}].image: {bad}") from None
        items.append(Item(image, entry["prompt"], entry.get("metadata") or {}, entry.get("group")))
    return items


def check_groups(items: list[Item]) -> None:
    """For a reward that compares: every picture says which others it belongs to."""
    shapes: dict[str | int, Any] = {}
    for i, item in enumerate(items):
        if item.group is None:
            raise Refusal(
                422,
                f"items[{i}].group: this reward compares the pictures of a prompt, so every item "
                "needs one (a `remote` reward: set its option scope to group)",
            )
        if shapes.setdefault(item.group, item.image.shape) != item.image.shape:
            raise Refusal(422, f"items[{i}].image: pictures of a group must have one size")


def _problem(entry: Any, settings: Settings) -> str | None:
    """What is wrong with an entry but for its picture, which is looked at later."""
    if not isinstance(entry, dict):
        return ": must be an object"
    image, prompt, metadata = (entry.get(key) for key in ("image", "prompt", "metadata"))
    if not isinstance(image, str):
        return ".image: must be base64 of a PNG"
    if not isinstance(prompt, str):
        return ".prompt: must be text"
    told = text_problem(prompt, settings.max_prompt)
    if told:
        return f".prompt: {told}"
    if not isinstance(metadata, dict | None):
        return ".metadata: must be an object"
    try:
        length = len(json.dumps(metadata, ensure_ascii=False).encode())
    except (UnicodeEncodeError, RecursionError):
        return ".metadata: holds half a character (a lone surrogate), or is nested too deeply"
    if length > settings.max_metadata:
        return f".metadata: {length} bytes; at most {settings.max_metadata} are taken"
    group = entry.get("group")
    if isinstance(group, bool) or not isinstance(group, str | int | None):
        return ".group: must be text or a whole number"
    return None
