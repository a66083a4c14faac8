"""Realism: how clean and coherent a picture is, by a small network that never sees the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from marble.errors import MarbleError
from marble.rewards.base import Metadata, Reward
from marble.rewards.convnet import Residual, as_input, conv, read_folder, write_folder
from marble.rewards.presence import Wanted, present


class RealismNet(nn.Module):
    """Images in [−1, 1] → one logit a picture."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        w = width
        self.body = nn.Sequential(
            conv(3, w, stride=2), Residual(w),
            conv(w, 2 * w, stride=2), Residual(2 * w),
            conv(2 * w, 3 * w, stride=2), Residual(3 * w),
        )  # fmt: skip
        # The worst place counts beside the average: damage is often local.
        self.head = nn.Sequential(nn.Linear(6 * w, 2 * w), nn.ReLU(), nn.Linear(2 * w, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x)
        pooled = torch.cat([features.mean((2, 3)), features.amax((2, 3))], 1)
        return self.head(pooled).squeeze(-1)


class Realism(Reward):
    """1 for a picture like those of the world, falling to 0 with damage; a held-out score.

    The network was trained to give 1 − severity on pictures damaged in known ways.
    """

    name = "realism"
    range = (0.0, 1.0)

    def __init__(
        self,
        path: str | Path,
        *,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
        name: str | None = None,
    ) -> None:
        config, state = read_folder(path, "realism model")
        self.model = RealismNet(**config)
        try:
            self.model.load_state_dict(state)
        except RuntimeError as error:
            raise MarbleError(
                f"the realism model in {path} does not fit its config.json"
            ) from error
        self.model.eval().requires_grad_(False).to(device)
        self.device = torch.device(device)
        self.batch_size = batch_size
        if name is not None:
            self.name = name

    @classmethod
    def check(cls, *, path: str | Path = "", **options: Any) -> str:
        return f"weights in {present(Wanted(path))[0]}"

    @staticmethod
    def save(model: RealismNet, folder: str | Path) -> None:
        write_folder(folder, {"width": model.width}, model)

    @torch.no_grad()
    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> torch.Tensor:
        parts = [
            self.model(as_input(chunk.to(self.device))).sigmoid()
            for chunk in images.split(self.batch_size)
        ]
        return torch.cat(parts).cpu()

    def to(self, device: str | torch.device) -> Realism:
        self.device = torch.device(device)
        self.model.to(device)
        return self
