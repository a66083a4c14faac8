"""The toy's flow model: an exact base and a small network whose LoRA is trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from diffusers.loaders import PeftAdapterMixin
from torch import Tensor, nn

from marble.models.base import Adapter
from marble.models.conditioning import Conditioning
from marble.study.toy.world import EMBEDDING, WIDTH, embedding, target, to_pictures

UNDERSHOOT, SPREAD = 0.6, 0.6
"""The base draws N(0.6·τ, 0.6²): in the right direction, not far enough, and scattered."""
HIDDEN = 64


class Correction(nn.Module, PeftAdapterMixin):
    """A frozen random network with a zero last layer: without LoRA it adds nothing."""

    _hf_peft_config_loaded = False

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.first = nn.Linear(WIDTH + EMBEDDING + 1, HIDDEN)
        self.middle = nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, WIDTH, bias=False)
        for layer in (self.first, self.middle):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, sigma: Tensor, words: Tensor) -> Tensor:
        h = torch.cat([x, words, sigma[:, None]], 1)
        h = nn.functional.silu(self.first(h))
        return self.last(nn.functional.silu(self.middle(h)))


class ToyAdapter(Adapter):
    """x_t = (1−σ)x_0 + σε in R¹²; v = v_base + correction, v_base exact for the base's Gaussian."""

    lora_targets = ("first", "middle", "last")

    def __init__(self, device: str | torch.device = "cpu") -> None:
        super().__init__(device, "fp32", None)
        self._net = Correction().to(self.device)

    @property
    def transformer(self) -> Correction:
        return self._net

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (WIDTH,)

    def check_prompts(self, prompts: Iterable[str]) -> None:
        pass

    def grid(self, steps: int) -> Tensor:
        return torch.linspace(1.0, 0.0, steps + 1)

    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        """v_base = E[ε − x_0 | x_t] for x_0 ~ N(μ, s²): both are linear in x_t − (1−σ)μ."""
        mean, words = cond.tensors["mean"], cond.tensors["words"]
        s = sigma_B.to(x_t)[:, None]
        around = (x_t - (1 - s) * mean) / ((1 - s) ** 2 * SPREAD**2 + s**2)
        base = s * around - (mean + (1 - s) * SPREAD**2 * around)
        return base + self._net(x_t, sigma_B.to(x_t), words)

    def decode(self, latents: Tensor, batch_size: int | None = None) -> Tensor:
        return to_pictures(latents.cpu())

    def _encode(self, prompts: list[str]) -> Conditioning:
        words = np.stack([embedding(prompt) for prompt in prompts])
        mean = UNDERSHOOT * np.stack([target(prompt) for prompt in prompts])
        return Conditioning(
            {"words": torch.from_numpy(words).float(), "mean": torch.from_numpy(mean).float()}
        )
