"""Finds lines of text with PP-OCR's detector and cuts them out, upright and 48 px high."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from marble.rewards.ocr.workers import Workers

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HEIGHT = 48
STEP = 32  # sides of the detector's input, and widths of lines, are multiples of it
PIXEL_THRESHOLD, BOX_THRESHOLD = 0.3, 0.5
#: The detector marks the core of a line; a box grows by this times area over perimeter.
GROWTH = 1.6
LEAST_BOX = 3  # px; smaller marks are noise


class LineFinder:
    """uint8 ``[n, 3, H, W]`` → for each picture the crops of its lines, in reading order."""

    def __init__(
        self, session: Any, least_side: int, greatest_side: int, workers: Workers, batch: int = 16
    ) -> None:
        self.session, self.workers, self.batch = session, workers, batch
        self.input = session.get_inputs()[0].name
        self.least_side, self.greatest_side = least_side, greatest_side

    def __call__(self, images: torch.Tensor) -> list[list[torch.Tensor]]:
        if not len(images):
            return []
        scaled = F.interpolate(
            images.float(), self._size(*images.shape[-2:]), mode="bilinear", antialias=True
        ).clamp(0, 255)
        out: list[list[torch.Tensor]] = []
        for part in scaled.split(max(self.batch, 2 * self.workers.count)):
            mean = torch.tensor(MEAN).view(1, 3, 1, 1)
            std = torch.tensor(STD).view(1, 3, 1, 1)
            pixels = ((part.flip(1) / 255 - mean) / std).contiguous().numpy()  # trained on BGR
            arrays = part.round().byte().permute(0, 2, 3, 1).contiguous().numpy()
            out += self.workers.map(self._lines, list(zip(arrays, pixels)))
        return out

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Near the picture's own size, within the limits, in multiples of 32."""
        scale = max(1.0, self.least_side / min(height, width))
        scale = min(scale, self.greatest_side / max(height, width))
        return tuple(max(STEP, round(side * scale / STEP) * STEP) for side in (height, width))  # type: ignore[return-value]

    def _lines(self, picture: tuple[np.ndarray, np.ndarray]) -> list[torch.Tensor]:
        array, pixels = picture
        boxes = find_boxes(self.session.run(None, {self.input: pixels[None]})[0][0, 0])
        return [cut_line(array, box) for box in sorted(boxes, key=_reading_order)]


def find_boxes(heat: np.ndarray) -> list[np.ndarray]:
    """Corners ``[4, 2]`` (from the upper left, clockwise) of the rotated boxes of a heat map."""
    import cv2

    mask = (heat > PIXEL_THRESHOLD).astype(np.uint8)
    contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes = []
    for contour in contours[:1000]:
        centre, (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < LEAST_BOX:
            continue
        inside = np.zeros_like(mask)
        cv2.drawContours(inside, [contour], -1, 1, -1)
        if heat[inside > 0].mean() < BOX_THRESHOLD:
            continue
        margin = GROWTH * width * height / (2 * (width + height))
        size = (width + 2 * margin, height + 2 * margin)
        boxes.append(_clockwise(cv2.boxPoints((centre, size, angle))))
    return boxes


def _clockwise(corners: np.ndarray) -> np.ndarray:
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = by_x[:2], by_x[2:]
    left = left[np.argsort(left[:, 1], kind="stable")]
    right = right[np.argsort(right[:, 1], kind="stable")]
    return np.stack([left[0], right[0], right[1], left[1]]).astype(np.float32)


def _reading_order(box: np.ndarray) -> tuple[int, float]:
    """Lines from top to bottom (centres within a third of a line are level), then left to right."""
    tall = max(1.0, float(np.linalg.norm(box[3] - box[0])))
    return round(float(box[:, 1].mean()) / (tall / 1.5)), float(box[:, 0].min())


def cut_line(array: np.ndarray, box: np.ndarray) -> torch.Tensor:
    """The box turned upright, scaled to 48 px and padded with grey to a multiple of 32."""
    import cv2

    width = float(np.linalg.norm([box[1] - box[0], box[2] - box[3]], axis=1).max())
    height = float(np.linalg.norm([box[3] - box[0], box[2] - box[1]], axis=1).max())
    if height >= 1.5 * width:  # a line that runs upwards
        box, width, height = np.roll(box, 1, axis=0), height, width
    target = max(8, min(960, math.ceil(HEIGHT * width / max(height, 1.0))))
    corners = np.array([[0, 0], [target, 0], [target, HEIGHT], [0, HEIGHT]], dtype=np.float32)
    matrix = cv2.getPerspectiveTransform(box, corners)
    line = cv2.warpPerspective(
        array, matrix, (target, HEIGHT), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    padded = max(96, math.ceil(target / STEP) * STEP)
    pixels = torch.from_numpy(line).permute(2, 0, 1).float()
    return F.pad(pixels, (0, padded - target), value=127.5)
