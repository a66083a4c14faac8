"""A small one-stage detector that also names colours: objects as points of a heat map.

Every cell of a 16 × 16 map (stride 4 on 64 px) says which class is centred there, how large the
object is, where in the cell its centre lies, and its colour (Zhou et al. 2019, "Objects as
points"). Peaks of the map are the detections: no anchors, no box suppression.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from marble.errors import MarbleError
from marble.replay import Replayed
from marble.rewards.convnet import Residual, as_input, conv, read_folder, write_folder
from marble.rewards.geneval.detectors import Detections

STRIDE = 4


@dataclass
class DetectorConfig:
    classes: list[str]
    colors: list[str]
    width: int = 28
    #: Platt scaling of the peak's logit: score = sigmoid(slope · logit + offset), so that a score
    #: is the measured probability that the peak is an object of that class.
    slope: float = 1.0
    offset: float = 0.0


class CenterNet(nn.Module):
    """Images in [−1, 1] ``[n, 3, H, W]`` → maps ``[n, classes + 2 + 2 + colours, H/4, W/4]``."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.stem = nn.Sequential(conv(3, w, stride=2), Residual(w))
        self.middle = nn.Sequential(conv(w, 2 * w, stride=2), Residual(2 * w), Residual(2 * w))
        # Half the resolution again: a cell must see its whole object, and its neighbours, to
        # know whether it is the centre of one or lies between two.
        self.deep = nn.Sequential(
            conv(2 * w, 3 * w, stride=2),
            Residual(3 * w),
            Residual(3 * w),
            conv(3 * w, 2 * w, kernel=1),
        )
        self.merge = nn.Sequential(conv(2 * w, 2 * w), Residual(2 * w))
        last = nn.Conv2d(2 * w, len(config.classes), 1)
        # Rare positives: start from "nothing here", or the first steps only unlearn noise.
        torch.nn.init.constant_(last.get_parameter("bias"), -4.0)
        self.heat = nn.Sequential(conv(2 * w, 2 * w), last)
        self.box = nn.Sequential(conv(2 * w, w), nn.Conv2d(w, 4, 1))
        self.color = nn.Sequential(conv(2 * w, 2 * w), nn.Conv2d(2 * w, len(config.colors), 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Class logits, box (log width, log height in cells, x and y within the cell), colours."""
        middle = self.middle(self.stem(x))
        deep = F.interpolate(self.deep(middle), scale_factor=2.0, mode="nearest")
        shared = self.merge(middle + deep)
        return self.heat(shared), self.box(shared), self.color(shared)


class CenterNetDetector:
    """The network as a GenEval detector, read from ``config.json`` and ``model.safetensors``."""

    def __init__(
        self,
        model: CenterNet,
        *,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
        top: int = 16,
        floor: float = 0.05,
    ) -> None:
        self.model = model.eval().requires_grad_(False).to(device)
        self.config = model.config
        self.classes = tuple(model.config.classes)
        self.device = torch.device(device)
        self.batch_size, self.top, self.floor = batch_size, top, floor
        self._replayed = Replayed(self.model, "the detector")

    @classmethod
    def load(
        cls, folder: str | Path, *, device: str | torch.device = "cpu", batch_size: int = 64
    ) -> CenterNetDetector:
        config, state = read_folder(folder, "detector")
        try:
            model = CenterNet(DetectorConfig(**config))
            model.load_state_dict(state)
        except (RuntimeError, TypeError) as error:
            raise MarbleError(
                f"the detector in {folder} does not fit its config.json: {error}"
            ) from error
        return cls(model, device=device, batch_size=batch_size)

    def save(self, folder: str | Path) -> None:
        """Write the folder in fp16."""
        write_folder(folder, asdict(self.config), self.model)

    @torch.no_grad()
    def detect(self, images: torch.Tensor) -> list[Detections]:
        found: list[Detections] = []
        for chunk in images.split(self.batch_size):
            pixels = as_input(chunk.to(self.device))
            maps = (self._replayed if pixels.is_cuda else self.model)(pixels)
            found += self.decode(*(m.float().cpu() for m in maps))
        return found

    def decode(
        self, heat: torch.Tensor, box: torch.Tensor, color: torch.Tensor
    ) -> list[Detections]:
        """The ``top`` strongest local maxima of each picture's heat map, above ``floor``."""
        logit, label, y, x = peaks(heat, self.top)
        score = torch.sigmoid(self.config.slope * logit + self.config.offset)
        rows = torch.arange(len(heat))[:, None]
        log_w, log_h, dx, dy = box.permute(0, 2, 3, 1)[rows, y, x].unbind(-1)
        cx, cy = (x + dx) * STRIDE, (y + dy) * STRIDE
        w, h = log_w.exp() * STRIDE, log_h.exp() * STRIDE
        corners = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1).numpy()
        hue = color.permute(0, 2, 3, 1)[rows, y, x].argmax(-1)
        results = []
        for i in range(len(heat)):
            keep = np.flatnonzero((score[i] > self.floor).numpy())
            results.append(
                Detections(
                    boxes=corners[i][keep],
                    labels=[self.config.classes[label[i, j]] for j in keep],
                    scores=score[i].numpy()[keep],
                    colors=[self.config.colors[hue[i, j]] for j in keep],
                )
            )
        return results

    def to(self, device: str | torch.device) -> CenterNetDetector:
        self.device = torch.device(device)
        self.model.to(device)
        self._replayed = Replayed(self.model, "the detector")  # the old one's weights have moved
        return self


def peaks(heat: torch.Tensor, top: int) -> tuple[torch.Tensor, ...]:
    """(logit, class, y, x) of the ``top`` strongest cells that no neighbour of any class exceeds.

    Competition runs across classes: two classes claiming one spot are one object seen twice.
    """
    best, label = heat.max(1)
    local = F.max_pool2d(best[:, None], 3, 1, 1)[:, 0]
    best = torch.where(best >= local, best, best.new_full((), -30.0))
    logit, index = best.flatten(1).topk(top)
    side = heat.shape[-1]
    return logit, label.flatten(1).gather(1, index), index // side, index % side
