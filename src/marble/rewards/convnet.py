"""Building blocks and files of the small convolutional networks that ship with the studio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from marble.errors import MarbleError


def conv(
    c_in: int, c_out: int, stride: int = 1, kernel: int = 3, act: bool = True
) -> nn.Sequential:
    """Convolution, batch norm and (unless told otherwise) ReLU."""
    layers: list[nn.Module] = [
        nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(c_out),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


class Residual(nn.Module):
    """Two 3 × 3 convolutions around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = conv(width, width), conv(width, width, act=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.second(self.first(x)))


def read_folder(folder: str | Path, what: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """``config.json`` and the tensors of ``model.safetensors`` in fp32."""
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
        state = load_file(str(folder / "model.safetensors"))
    except Exception as error:
        raise MarbleError(
            f"cannot load the {what} in {folder}: {error}; reinstall marble-rl or rebuild it "
            "with `make studio`"
        ) from error
    return config, {k: v.float() if v.is_floating_point() else v for k, v in state.items()}


def write_folder(folder: str | Path, config: dict[str, Any], model: nn.Module) -> None:
    """Write both files, the weights in fp16."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        k: (v.half() if v.is_floating_point() else v).cpu().contiguous()
        for k, v in model.state_dict().items()
    }
    save_file(state, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def as_input(images: torch.Tensor, multiple: int = 8) -> torch.Tensor:
    """uint8 → [−1, 1]; the sides must be multiples of the network's stride."""
    height, width = images.shape[-2:]
    if height % multiple or width % multiple:
        raise MarbleError(
            f"this network takes sides that are multiples of {multiple}, not {height}×{width}"
        )
    return images.float() / 127.5 - 1
