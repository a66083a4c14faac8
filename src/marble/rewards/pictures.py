"""Pictures as PNG text for JSON, and back, trusting nothing about what arrives."""

from __future__ import annotations

import base64
import binascii
import io
import struct
import warnings

import numpy as np
import torch
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 4096 * 4096
MAX_ASPECT = 32


class BadPicture(ValueError):
    """Not a picture we take; the message says why."""


def to_png(image: torch.Tensor) -> str:
    """uint8 [3, H, W] → base64 of a PNG (lossless, so scores do not change on the way)."""
    buffer = io.BytesIO()
    array = image.permute(1, 2, 0).contiguous().cpu().numpy()
    Image.fromarray(array).save(buffer, "PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def png_size(text: str, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Width and height by the header, without decoding; refuses what no reward could look at."""
    try:
        raw = base64.b64decode(text[:32], validate=True)
    except (binascii.Error, ValueError):
        raise BadPicture("not base64") from None
    if not raw.startswith(SIGNATURE) or len(raw) < 24:
        raise BadPicture("not a PNG")
    width, height = struct.unpack(">II", raw[16:24])  # of the header chunk, always the first
    if width * height > max_pixels:
        raise BadPicture(f"{width} × {height} pixels; at most {max_pixels} are taken")
    if max(width, height) > MAX_ASPECT * min(width, height):
        # Rewards scale the shorter side up to what their model takes.
        raise BadPicture(f"{width} × {height} pixels; a side may be {MAX_ASPECT} times the other")
    return width, height


def from_png(text: str, max_pixels: int = MAX_PIXELS) -> torch.Tensor:
    """base64 of a PNG → uint8 [3, H, W]. The size is read from the header before any decoding."""
    png_size(text, max_pixels)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadPicture("not base64") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            array = _rgb(Image.open(io.BytesIO(raw), formats=["PNG"]))
    except Exception as error:  # a damaged file can make the decoder raise anything
        raise BadPicture(f"damaged PNG ({type(error).__name__})") from None
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()


def _rgb(image: Image.Image) -> np.ndarray:
    """uint8 [H, W, 3]. Of 16 bits the upper 8 count; Pillow does so for colour, but clips grey."""
    if image.mode.startswith("I"):
        grey = np.array(image, dtype=np.int64) >> 8
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    return np.array(image.convert("RGB"))
