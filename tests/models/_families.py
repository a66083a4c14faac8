"""Every family on its tiny pipeline: what the tests over families share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch

from marble.models import load
from marble.models.family import Family
from marble.models.pipeline import PipelineAdapter
from marble.models.quiet import quiet
from marble.models.registry import families

FAMILIES = {family.__name__: family for family in families()}
SIDE, STEPS = 32, 4
TOKENS = {"Qwen": 256}
"""Text tokens where 128 would cut the prompts: the tiny tokenizers read bytes."""
OPTIONS = {
    "Sana": {"instruction": False},  # 1,100 bytes before every prompt
    "Flux": {"guidance": 4.0},  # times 1000, as the model takes it, it is a number of bf16
}
PROMPTS, SEEDS = ["a cat", 'a sign that says "TEA"'], [5, 2**62 + 7]


@dataclass
class Case:
    """A family, its tiny folder and diffusers' own pipeline of it."""

    family: type[Family]
    folder: Path

    @property
    def tokens(self) -> int:
        return TOKENS.get(self.family.__name__, 128)

    def adapter(self, **more: Any) -> PipelineAdapter:
        options = OPTIONS.get(self.family.__name__, {})
        settings = {"options": options, "max_sequence_length": self.tokens, **more}
        return load(str(self.folder), resolution=SIDE, **settings)

    @cached_property
    def shared(self) -> PipelineAdapter:
        """One that tests may not change."""
        return self.adapter()

    @cached_property
    def stock(self) -> Any:
        index = self.family.adapter.optional_parts
        with quiet():
            absent = {part: None for part in index if not (self.folder / part).is_dir()}
            pipeline = getattr(diffusers, self.family.pipeline).from_pretrained(
                self.folder, **absent
            )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def picture(
        self, prompt: str, seed: int, guidance: float, adapter: PipelineAdapter | None = None
    ) -> np.ndarray:
        """By diffusers, as integers [3, H, W]."""
        options = (adapter or self.shared).options
        call = self.family.arguments(guidance=guidance, options=options)
        with quiet():
            drawn = self.stock(
                prompt=prompt,
                height=SIDE,
                width=SIDE,
                num_inference_steps=STEPS,
                max_sequence_length=self.tokens,
                generator=torch.Generator().manual_seed(seed),
                output_type="np",
                **call,
            ).images[0]
        return (drawn * 255).round().astype(int).transpose(2, 0, 1)

    def ours(self, guidance: float, adapter: PipelineAdapter | None = None) -> np.ndarray:
        adapter = adapter or self.shared
        latents = adapter.sample(
            adapter.encode(PROMPTS), SEEDS, steps=STEPS, sampler="euler", guidance=guidance
        )
        return adapter.decode(latents).numpy().astype(int)


def randomise(adapter: Any, seed: int = 0, scale: float = 0.1) -> None:
    """LoRA weights that do something (B starts at zero)."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapter.lora_parameters().values():
        parameter.data.normal_(std=scale, generator=generator)
