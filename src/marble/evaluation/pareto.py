"""Pareto fronts and the volume they dominate; larger is better on every axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
EXACT_UP_TO = 5


def pareto_front(points_PK: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the points no other point dominates (≥ everywhere and > somewhere)."""
    points = _points(points_PK)
    at_least = (points[:, None] >= points[None]).all(axis=-1)
    above = (points[:, None] > points[None]).any(axis=-1)
    return np.asarray(~(at_least & above).any(axis=0))


@dataclass(frozen=True)
class Hypervolume:
    """A volume, and its standard error where it was sampled (0 where exact)."""

    value: float
    error: float = 0.0


def hypervolume(
    points_PK: ArrayLike, reference_K: ArrayLike, *, draws: int = 200_000, seed: int = 0
) -> Hypervolume:
    """Volume of the union of the boxes from `reference` up to each point.

    Points not above the reference on every axis span no box. Exact for up to 5 axes; beyond, by
    seeded Monte Carlo in the bounding box, with V·sqrt(p(1−p)/draws) as its standard error.
    """
    points, reference = _points(points_PK), np.asarray(reference_K, dtype=np.float64)
    if reference.shape != points.shape[1:]:
        raise ValueError(f"reference {reference.shape} does not fit points {points.shape}")
    boxes = points - reference
    boxes = boxes[(boxes > 0).all(axis=1)]
    if not len(boxes):
        return Hypervolume(0.0)
    boxes = np.unique(boxes[pareto_front(boxes)], axis=0)
    if boxes.shape[1] <= EXACT_UP_TO:
        return Hypervolume(_exact(boxes))
    return _sampled(boxes, draws, seed)


def _exact(boxes: Floats) -> float:
    """Slices along the last axis: between two heights the cross-section is a smaller problem."""
    if boxes.shape[1] == 1:
        return float(boxes.max())
    boxes = boxes[np.argsort(-boxes[:, -1])]
    heights = np.append(boxes[:, -1], 0.0)
    volume = 0.0
    for i in range(len(boxes)):
        thickness = heights[i] - heights[i + 1]
        if thickness > 0:
            section = boxes[: i + 1, :-1]
            volume += thickness * _exact(section[pareto_front(section)])
    return volume


def _sampled(boxes: Floats, draws: int, seed: int) -> Hypervolume:
    corner = boxes.max(axis=0)
    rng = np.random.default_rng(seed)
    hits, left = 0, draws
    while left:
        chunk = min(left, 20_000)
        x = rng.random((chunk, boxes.shape[1])) * corner
        hits += int((x[:, None] <= boxes[None]).all(axis=-1).any(axis=1).sum())
        left -= chunk
    volume, share = float(np.prod(corner)), hits / draws
    return Hypervolume(volume * share, volume * float(np.sqrt(share * (1 - share) / draws)))


def _points(points: ArrayLike) -> Floats:
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise ValueError(f"points must be finite and [points, axes], got shape {array.shape}")
    return array
