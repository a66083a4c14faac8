"""Cheap image statistics that move first when a model learns to cheat its rewards.

A policy that games a reward seldom hides it: pictures turn gaudy, over-sharp, flat or all alike.
These numbers cost 0.1 ms per picture of 64 px, need no model, and mean something
only against the same numbers of the base model on the same prompts and seeds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

NAMES = ("sharpness", "contrast", "saturation", "entropy", "edges", "blank", "diversity")

BLANK_CONTRAST = 0.02
"""Standard deviation of luma (0–1) under which a picture counts as near-blank."""
EDGE_SLOPE = 0.1
"""Luma step between neighbours (0–1) from which a pixel counts as lying on an edge."""
_THUMB = 16
_TIE = 1e-12
"""Relative distance to a threshold under which rounding may decide."""
_CHUNK = 2**16
"""Pixels worked on at a time, at least one picture: enough for speed, little memory."""

Floats = NDArray[np.float64]
_LUMA: Floats = np.array([[0.299, 0.587, 0.114]])


def drift_statistics(
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
    pixels = images.shape[2] * images.shape[3]
    scratch = np.empty((5, min(len(images), _at_once(pixels)) * pixels))
    parts = [_statistics(part, scratch) for part in _chunks(images)]
    columns = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0)
        for name in NAMES[:-1]
    }
    columns["diversity"] = diversity(images, groups)
    return columns


def diversity(images: NDArray[np.uint8], groups: Sequence[Hashable] | None = None) -> Floats:
    """Mean RMS distance (0–1) of each picture to the others of its group, on 16 × 16 thumbnails.

    Small thumbnails compare layout and colour and ignore grain, so a policy cannot look diverse
    by adding noise. A picture alone in its group, or no groups at all, gives NaN.
    """
    if groups is None:
        return np.full(len(images), np.nan)
    if len(groups) != len(images):
        raise ValueError(f"{len(groups)} group ids for {len(images)} images")
    if len(set(groups)) == len(groups):
        return np.full(len(images), np.nan)
    return spread_of(thumbnails(images), groups)


def thumbnails(images: NDArray[np.uint8]) -> Floats:
    """[n, 3·16·16] of uint8 images [n, 3, H, W]: all that `spread_of` needs of them."""
    parts = [_thumbnails(part) for part in _chunks(images)]
    return np.concatenate(parts) if parts else np.zeros((0, 3 * _THUMB**2))


def spread_of(thumbs_nT: Floats, groups: Sequence[Hashable]) -> Floats:
    """`diversity` from thumbnails, which may come from several processes."""
    spread = np.full(len(thumbs_nT), np.nan)
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    for rows in (rows for rows in members.values() if len(rows) > 1):
        thumbs = thumbs_nT[rows]
        square = np.mean((thumbs[:, None] - thumbs[None]) ** 2, axis=-1)
        spread[rows] = np.sqrt(square).sum(axis=1) / (len(rows) - 1)
    return spread


def _at_once(pixels: int) -> int:
    """How many pictures of that many pixels make a chunk."""
    return max(1, _CHUNK // max(1, pixels))


def _chunks(images: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    step = _at_once(images.shape[2] * images.shape[3])
    for start in range(0, len(images), step):
        yield images[start : start + step]


def _statistics(images: NDArray[np.uint8], scratch: Floats) -> dict[str, Floats]:
    """All but the diversity, of a chunk of pictures.

    Every plane of floats lies in ``scratch`` ([5, pixels of a chunk]): fresh memory for each
    would cost more than the arithmetic.
    """
    n, _, height, width = images.shape
    planes = np.ascontiguousarray(images.transpose(1, 0, 2, 3))
    size = planes[0].size
    rgb = scratch.ravel()[: 3 * size].reshape(3, size)
    np.divide(planes.reshape(3, size), 255.0, out=rgb)
    luma = scratch.ravel()[3 * size : 4 * size].reshape(n, height, width)
    np.dot(_LUMA, rgb, out=luma.reshape(1, size))
    first, second, third = rgb.reshape(3, n, height, width)  # no longer needed as colours
    fourth = scratch.ravel()[4 * size : 5 * size].reshape(n, height, width)
    high, low = planes.max(axis=0), planes.min(axis=0)
    np.divide(high - low, np.maximum(high, 1), out=first)
    saturation = first.reshape(n, -1).mean(axis=1)
    contrast = _spread(luma, first)
    edges = _on_edge(luma, first, second, third, fourth).reshape(n, -1)
    return {
        "sharpness": _spread(_laplacian(luma, first, second), second),
        "contrast": contrast,
        "saturation": saturation,
        "entropy": _entropy(luma, first, second),
        "edges": np.count_nonzero(edges, axis=1) / (height * width),
        "blank": (contrast < BLANK_CONTRAST).astype(np.float64),
    }


def _spread(values: Floats, work: Floats) -> Floats:
    """Standard deviation of each [H, W] of [n, H, W]."""
    flat, centred = values.reshape(len(values), -1), work.reshape(len(values), -1)
    np.subtract(flat, flat.mean(axis=1, keepdims=True), out=centred)
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", centred, centred) / flat.shape[1]))


def _entropy(luma: Floats, work: Floats, whole: Floats) -> Floats:
    n, pixels = len(luma), luma[0].size
    np.rint(np.multiply(luma, 255, out=work), out=work)
    levels = whole.view(np.int64)
    np.add(work, 256 * np.arange(n)[:, None, None], out=levels, casting="unsafe")
    share = np.bincount(levels.ravel(), minlength=256 * n).reshape(n, 256) / pixels
    bits = np.log2(share, out=np.zeros_like(share), where=share > 0)
    return np.asarray(-(share * bits).sum(axis=1) + 0.0)


def _on_edge(
    luma: Floats, dy: Floats, dx: Floats, square: Floats, work: Floats
) -> NDArray[np.bool_]:
    dy[:, -1], dx[:, :, -1] = 0, 0
    np.subtract(luma[:, 1:], luma[:, :-1], out=dy[:, :-1])
    np.subtract(luma[:, :, 1:], luma[:, :, :-1], out=dx[:, :, :-1])
    np.multiply(dx, dx, out=square)
    square += np.multiply(dy, dy, out=work)
    found = square >= EDGE_SLOPE**2 * (1 + _TIE)
    # hypot is slow: it decides only where the squares might round to the other side.
    close = np.flatnonzero((square > EDGE_SLOPE**2 * (1 - _TIE)) ^ found)
    found.flat[close] = np.hypot(dx.flat[close], dy.flat[close]) >= EDGE_SLOPE
    return found


def _laplacian(luma: Floats, out: Floats, work: Floats) -> Floats:
    """The four neighbours less four times the pixel; over the border lies the pixel itself."""
    out[:, 1:], out[:, 0] = luma[:, :-1], luma[:, 0]
    out[:, :-1] += luma[:, 1:]
    out[:, -1] += luma[:, -1]
    out[:, :, 1:] += luma[:, :, :-1]
    out[:, :, 0] += luma[:, :, 0]
    out[:, :, :-1] += luma[:, :, 1:]
    out[:, :, -1] += luma[:, :, -1]
    out -= np.multiply(luma, 4, out=work)
    return out


def _thumbnails(images: NDArray[np.uint8]) -> Floats:
    """Area means on a grid of at most 16 × 16, 0–1; [n, 3, H, W] → [n, 3 · 16 · 16]."""
    rows, cols = _cells(images.shape[2]), _cells(images.shape[3])
    sums = rows @ images.astype(np.float64) @ cols.T  # of whole numbers: exact in any order
    sums /= rows.sum(axis=1)[:, None] * cols.sum(axis=1) * 255
    return np.asarray(sums.reshape(len(images), -1))


def _cells(side: int) -> Floats:
    """[cells, side]: 1 where a pixel lies in the cell."""
    starts = np.linspace(0, side, min(_THUMB, side), endpoint=False).astype(np.int64)
    owner = np.repeat(np.arange(len(starts)), np.diff(starts, append=side))
    return np.asarray(owner == np.arange(len(starts))[:, None], dtype=np.float64)
