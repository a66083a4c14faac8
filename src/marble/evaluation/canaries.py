"""Cheap image statistics that move first when a model learns to cheat its rewards.

A policy that games a reward seldom hides it: pictures turn gaudy, over-sharp, flat or all alike.
These numbers cost about a millisecond a picture, need no model, and mean something only against
the same numbers of the base model on the same prompts and seeds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

NAMES = ("sharpness", "contrast", "saturation", "entropy", "edges", "blank", "diversity")

BLANK_CONTRAST = 0.02
"""Standard deviation of luma (0–1) under which a picture counts as near-blank."""
EDGE_SLOPE = 0.1
"""Luma step between neighbours (0–1) from which a pixel counts as lying on an edge."""
_THUMB = 16

Floats = NDArray[np.float64]


def canaries(
    images: NDArray[np.uint8], groups: Sequence[Hashable] | None = None
) -> dict[str, Floats]:
    """Statistics of each picture; uint8 images [n, 3, H, W] → name → [n] (NaN: does not apply).

    - ``sharpness``: standard deviation of the luma's Laplacian;
    - ``contrast``: standard deviation of luma;
    - ``saturation``: mean of (max − min) / max over the colour channels;
    - ``entropy``: bits of the 256-bin luma histogram, 0–8;
    - ``edges``: share of pixels whose luma gradient is at least ``EDGE_SLOPE``;
    - ``blank``: 1 where the contrast is under ``BLANK_CONTRAST``, else 0;
    - ``diversity``: mean RMS distance to the other pictures of the same group (see ``diversity``).
    """
    images = np.asarray(images)
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != np.uint8:
        raise ValueError(f"expected uint8 images [n, 3, H, W], got {images.dtype} {images.shape}")
    rows = [_statistics(image) for image in images]
    columns = {name: np.array([row[name] for row in rows]) for name in NAMES[:-1]}
    columns["diversity"] = diversity(images, groups)
    return columns


def diversity(images: NDArray[np.uint8], groups: Sequence[Hashable] | None = None) -> Floats:
    """Mean RMS distance (0–1) of each picture to the others of its group, on 16 × 16 thumbnails.

    Small thumbnails compare layout and colour and ignore grain, so a policy cannot look diverse
    by adding noise. A picture alone in its group, or no groups at all, gives NaN.
    """
    spread = np.full(len(images), np.nan)
    if groups is None:
        return spread
    if len(groups) != len(images):
        raise ValueError(f"{len(groups)} group ids for {len(images)} images")
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    for rows in members.values():
        if len(rows) < 2:
            continue
        thumbs = np.stack([_thumbnail(images[i]).ravel() for i in rows])
        square = np.mean((thumbs[:, None] - thumbs[None]) ** 2, axis=-1)
        spread[rows] = np.sqrt(square).sum(axis=1) / (len(rows) - 1)
    return spread


def _statistics(image: NDArray[np.uint8]) -> dict[str, float]:
    rgb = image.astype(np.float64) / 255
    luma = np.tensordot((0.299, 0.587, 0.114), rgb, axes=1)
    high, low = rgb.max(axis=0), rgb.min(axis=0)
    dy = np.abs(np.diff(luma, axis=0, append=luma[-1:]))
    dx = np.abs(np.diff(luma, axis=1, append=luma[:, -1:]))
    counts = np.bincount(np.rint(luma * 255).astype(np.int64).ravel(), minlength=256)
    share = counts[counts > 0] / luma.size
    contrast = float(luma.std())
    return {
        "sharpness": float(_laplacian(luma).std()),
        "contrast": contrast,
        "saturation": float(np.mean((high - low) / np.maximum(high, 1e-9))),
        "entropy": float(-(share * np.log2(share)).sum()) + 0.0,
        "edges": float(np.mean(np.hypot(dx, dy) >= EDGE_SLOPE)),
        "blank": float(contrast < BLANK_CONTRAST),
    }


def _laplacian(luma: Floats) -> Floats:
    padded = np.pad(luma, 1, mode="edge")
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    return around - 4 * luma


def _thumbnail(image: NDArray[np.uint8]) -> Floats:
    """Area means on a grid of at most 16 × 16, 0–1."""
    _, height, width = image.shape
    rows = np.linspace(0, height, min(_THUMB, height), endpoint=False).astype(np.int64)
    cols = np.linspace(0, width, min(_THUMB, width), endpoint=False).astype(np.int64)
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows, axis=1), cols, axis=2)
    tall = np.diff(rows, append=height)[:, None]
    wide = np.diff(cols, append=width)[None]
    return np.asarray(sums / (tall * wide * 255))
