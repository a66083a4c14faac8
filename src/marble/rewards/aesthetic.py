"""Aesthetic score: a small head on CLIP's image embedding; the prompt plays no part."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marble.errors import MarbleError
from marble.rewards.base import Metadata
from marble.rewards.clip import ClipReward
from marble.rewards.presence import Wanted


class AestheticHead(nn.Module):
    """Linear layers of the given widths, with an optional activation between them.

    LAION's predictor has none (its five layers are one linear map in the end) and is read from
    its published file, where dropout layers take up indices: ``layers.0``, ``layers.2``, ….
    """

    def __init__(self, widths: list[int], activation: str = "none") -> None:
        super().__init__()
        if activation not in ("none", "gelu"):
            raise MarbleError(f"unknown activation {activation!r} in an aesthetic head")
        self.activation = activation
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        x = embeddings
        for layer in self.layers[:-1]:
            x = layer(x)
            if self.activation == "gelu":
                x = nn.functional.gelu(x)
        return self.layers[-1](x).squeeze(-1)

    @classmethod
    def from_state(
        cls, state: Mapping[str, torch.Tensor], activation: str = "none"
    ) -> AestheticHead:
        """The head whose linear layers are those of ``state``, in the order of their indices."""
        indices = sorted(
            {int(m.group(1)) for key in state if (m := re.search(r"(\d+)\.weight$", key))}
        )
        pick = {
            key.rsplit(".", 2)[-2] + "." + key.rsplit(".", 1)[-1]: v for key, v in state.items()
        }
        if not indices:
            raise MarbleError("this file holds no linear layers: not an aesthetic head")
        widths = [pick[f"{indices[0]}.weight"].shape[1]]
        widths += [pick[f"{i}.weight"].shape[0] for i in indices]
        head = cls(widths, activation)
        for layer, index in zip(head.layers, indices):
            layer.weight.data = pick[f"{index}.weight"].float()
            layer.bias.data = pick[f"{index}.bias"].float()
        return head


def load_head(file: Path) -> AestheticHead:
    """Read a head from safetensors, or from a ``.pth`` of tensors (nothing else is unpickled)."""
    if not file.is_file():
        raise MarbleError(f"no such file: {file}; give the aesthetic head as `head:`")
    try:
        if file.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(str(file), "pt") as opened:
                activation = (opened.metadata() or {}).get("activation", "none")
                state = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        else:
            activation, state = "none", torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise MarbleError(f"cannot read the aesthetic head {file}: {error}") from error
    return AestheticHead.from_state(state, activation)


class Aesthetic(ClipReward):
    """LAION's aesthetic predictor on CLIP ViT-L/14; 5 for a plain picture, 6.5 for a fine one.

    Preprocessing is CLIP's (224, bicubic, centre crop); the head sees the unit-length embedding.
    """

    name = "aesthetic"
    range = (0.0, 11.0)
    default_path = "openai/clip-vit-large-patch14"
    default_revision = "32bd64288804d66eefd0ccbe215aa642df71cc41"
    #: A copy of LAION's sac+logos+ava1-l14-linearMSE.pth that the hub serves.
    head_hub = ("trl-lib/ddpo-aesthetic-predictor", "aesthetic-model.pth")
    head_revision = "cf4bd10345610935a80a5d3be9a3133c50f121e4"

    def __init__(
        self, path: str | Path | None = None, *, head: str | Path | None = None, **options: Any
    ) -> None:
        super().__init__(path, **options)
        self.head = load_head(Path(head) if head else self._published_head())
        self.head.eval().requires_grad_(False).to(self.encoder.device)
        if self.head.layers[0].in_features != self.encoder.width:
            raise MarbleError(
                f"the aesthetic head takes embeddings of {self.head.layers[0].in_features}, "
                f"this CLIP gives {self.encoder.width}: they do not belong together"
            )

    @classmethod
    def wanted(cls, *, head: str | Path | None = None, **options: Any) -> list[Wanted]:
        published = Wanted("/".join(cls.head_hub), cls.head_revision)
        return [*super().wanted(**options), Wanted(head) if head else published]

    def _published_head(self) -> Path:
        from huggingface_hub import hf_hub_download

        repo, file = self.head_hub
        try:
            return Path(hf_hub_download(repo, file, revision=self.head_revision))
        except Exception as error:
            raise MarbleError(
                f"cannot get {file} of {repo} from the hub ({type(error).__name__}); "
                "check the network or give a local copy as `head:`"
            ) from error

    def score(
        self, images: torch.Tensor, prompts: list[str], metadata: list[Metadata]
    ) -> torch.Tensor:
        with torch.no_grad():
            return self.head(self.encoder.embed_images(images)).cpu()

    def to(self, device: str | torch.device) -> Aesthetic:
        super().to(device)
        self.head.to(device)
        return self
