"""GenEval's detector from transformers: Mask2Former (Swin-S) trained on COCO instances."""

from __future__ import annotations

import math
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from marble.errors import MarbleError
from marble.rewards.geneval.coco import COCO_CLASSES
from marble.rewards.geneval.detectors import Detections
from marble.rewards.geneval.rules import CONFIDENCE
from marble.rewards.options import construct
from marble.rewards.precision import as_dtype, kept_in
from marble.rewards.weights import local_folder, quiet_loading

HUB_ID = "facebook/mask2former-swin-small-coco-instance"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHORT_SIDE, LONG_SIDE, DIVISOR = 800, 1333, 32


class Mask2FormerDetector:
    """Instance segmentation with scores as in mmdetection, which GenEval used.

    A detection is one of the best 100 (query, class) pairs; its score is the class probability
    times the mean mask probability inside the mask, its box the extent of the mask. Architecture,
    training set, preprocessing and scores are those GenEval uses; the weights are the ones the
    architecture's authors trained, GenEval's were trained again by mmdetection's.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        revision: str | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str = "fp32",
        batch_size: int = 8,
        short_side: int = SHORT_SIDE,
    ) -> None:
        from transformers import Mask2FormerForUniversalSegmentation

        folder = local_folder(path or HUB_ID, revision)
        try:
            with quiet_loading():
                model = Mask2FormerForUniversalSegmentation.from_pretrained(
                    folder, dtype=torch.float32
                )
        except Exception as error:
            raise MarbleError(f"cannot load the detector in {folder}: {error}") from error
        if model.config.num_labels != len(COCO_CLASSES):
            raise MarbleError(
                f"the detector in {folder} has {model.config.num_labels} classes; GenEval needs "
                f"COCO's {len(COCO_CLASSES)}, e.g. {HUB_ID}"
            )
        self.model = kept_in(model, as_dtype(dtype)).to(device)
        self.classes = COCO_CLASSES
        self.device = torch.device(device)
        self.batch_size, self.short_side = batch_size, short_side

    @torch.no_grad()
    def detect(self, images: torch.Tensor) -> list[Detections]:
        found: list[Detections] = []
        frame = Frame.of(int(images.shape[-2]), int(images.shape[-1]), self.short_side)
        for chunk in images.split(self.batch_size):
            pixels = preprocess(chunk, frame).to(self.device)
            output = self.model(pixel_values=pixels)
            for logits, masks in zip(output.class_queries_logits, output.masks_queries_logits):
                found.append(instances(logits.float(), masks.float(), frame))
        return found

    def to(self, device: str | torch.device) -> Mask2FormerDetector:
        self.device = torch.device(device)
        self.model.to(device)
        return self


_shared: weakref.WeakValueDictionary[tuple[tuple[str, str], ...], Mask2FormerDetector] = (
    weakref.WeakValueDictionary()
)
_lock = threading.Lock()


def load_detector(**options: Any) -> Mask2FormerDetector:
    """The detector with these options, shared: graded and strict GenEval use one network."""
    key = tuple(sorted((name, str(value)) for name, value in options.items()))
    with _lock:
        detector = _shared.get(key)
        if detector is None:
            detector = construct(Mask2FormerDetector, options, "the mask2former detector")
            _shared[key] = detector
        return detector


@dataclass(frozen=True)
class Frame:
    """Sizes (height, width) on a picture's way in and its masks' way back."""

    picture: tuple[int, int]
    resized: tuple[int, int]
    """Shorter side 800, unless the longer one would exceed 1333; the shape is kept."""
    padded: tuple[int, int]
    """Sides filled up to multiples of 32, at the right and at the bottom."""

    @classmethod
    def of(cls, height: int, width: int, short_side: int = SHORT_SIDE) -> Frame:
        scale = min(short_side / min(height, width), LONG_SIDE / max(height, width))
        resized = (int(height * scale + 0.5), int(width * scale + 0.5))
        padded = (_multiple(resized[0]), _multiple(resized[1]))
        return cls((height, width), resized, padded)

    def restore(self, masks: torch.Tensor) -> torch.Tensor:
        """Mask logits ``[m, h, w]`` of the network → the picture's size, without the padding."""
        masks = F.interpolate(masks[None], self.padded, mode="bilinear", align_corners=False)
        masks = masks[..., : self.resized[0], : self.resized[1]]
        return F.interpolate(masks, self.picture, mode="bilinear", align_corners=False)[0]


def _multiple(side: int) -> int:
    return math.ceil(side / DIVISOR) * DIVISOR


def preprocess(images: torch.Tensor, frame: Frame) -> torch.Tensor:
    """Bilinear resize, ImageNet's mean and std, then zeros to the padded size."""
    height, width = frame.resized
    bilinear = Image.Resampling.BILINEAR
    arrays = images.permute(0, 2, 3, 1).cpu().numpy()
    resized = np.stack(
        [np.asarray(Image.fromarray(a).resize((width, height), bilinear)) for a in arrays]
    )
    pixels = torch.from_numpy(resized).permute(0, 3, 1, 2).float() / 255
    pixels = (pixels - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    return F.pad(pixels, (0, frame.padded[1] - width, 0, frame.padded[0] - height))


def instances(logits: torch.Tensor, masks: torch.Tensor, frame: Frame) -> Detections:
    """Queries ``[Q, C + 1]`` and their mask logits ``[Q, h, w]`` → detections in the picture."""
    probability = logits.softmax(-1)[:, :-1]
    classes = probability.shape[-1]
    score, index = probability.flatten().topk(min(100, probability.numel()))
    # The mask factor is at most 1: what is below the threshold now stays below it.
    keep = score > CONFIDENCE
    score, query, label = score[keep], index[keep] // classes, index[keep] % classes
    if not len(score):
        return Detections(np.zeros((0, 4)), [], np.zeros(0), np.zeros((0, *frame.picture), bool))
    grown = frame.restore(masks[query])
    inside = grown > 0
    area = inside.flatten(1).sum(1)
    confidence = (grown.sigmoid() * inside).flatten(1).sum(1) / (area + 1e-6)
    shown = (area > 0).nonzero().flatten()
    boxes = [_extent(inside[i]) for i in shown]
    return Detections(
        boxes=np.array(boxes, dtype=np.float64).reshape(-1, 4),
        labels=[COCO_CLASSES[int(label[i])] for i in shown],
        scores=(score * confidence)[shown].cpu().numpy(),
        masks=inside[shown].cpu().numpy(),
    )


def _extent(mask: torch.Tensor) -> tuple[int, int, int, int]:
    rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
