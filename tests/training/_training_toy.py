"""A run in miniature: a tiny SD3 pipeline, three rewards in a file, prompts in two sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from marble.models.sd3 import SD3
from marble.recipe import Recipe, load_recipe

REWARDS = '''
def red(images, prompts, metadata):
    return images[:, 0].float().mean((1, 2)).div(255).tolist()


def blue(images, prompts, metadata):
    """Has something to say only about one of the two sources."""
    means = images[:, 2].float().mean((1, 2)).div(255).tolist()
    return [m if meta["source"] == "ocr" else None for m, meta in zip(means, metadata)]


def dark(images, prompts, metadata):
    return (-images.float().mean((1, 2, 3)).div(255)).tolist()


def flat(images, prompts, metadata):
    """Tells no two pictures apart."""
    return [0.5] * len(images)
'''
GENERAL = ["a cat", "a red dog", "two green birds", "the sea", "an old house", "a tree at night"]
OCR = ['a sign that says "TEA"', 'a door with "OPEN"', 'a mug with "JOE"', 'a shirt with "42"']


@dataclass(frozen=True)
class Toy:
    """Folder with everything, and recipes made of it."""

    folder: Path

    @property
    def rewards_file(self) -> Path:
        return self.folder / "toy_rewards.py"

    @property
    def recipe_file(self) -> Path:
        return self.folder / "toy.yaml"

    def recipe(self, *overrides: str, base: str | None = None) -> Recipe:
        """The toy recipe, or a shipped one on the toy's model, prompts and rewards."""
        if base is None:
            return load_recipe(str(self.recipe_file), overrides)
        return load_recipe(base, [*self.overrides(), *overrides])

    def overrides(self, rewards: tuple[str, ...] = ("red", "blue", "dark")) -> list[str]:
        entries = ", ".join(f"{{name: {r}, reward: '{self.rewards_file}:{r}'}}" for r in rewards)
        return [
            f"model.path={self.folder / 'model'}",
            f"data.sources.general.path={self.folder / 'prompts' / 'general'}",
            f"data.sources.ocr.path={self.folder / 'prompts' / 'ocr'}",
            "data.sources.geneval.share=0",
            f"data.sources.geneval.path={self.folder / 'prompts' / 'general'}",
            f"rewards.train=[{entries}]",
            "rewards.heldout=[]",
        ]


def make_toy(folder: Path) -> Toy:
    toy = Toy(folder)
    SD3.tiny(folder / "model", tokens=40)
    toy.rewards_file.write_text(REWARDS)
    for source, prompts in (("general", GENERAL), ("ocr", OCR)):
        for split in ("train", "test"):
            path = folder / "prompts" / source / f"{split}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(prompts) + "\n")
    toy.recipe_file.write_text(yaml.safe_dump(_recipe(toy), sort_keys=False))
    return toy


def _recipe(toy: Toy) -> dict[str, Any]:
    prompts = toy.folder / "prompts"
    return {
        "model": {
            "path": str(toy.folder / "model"),
            "dtype": "fp32",
            "max_sequence_length": 2,  # of a T5 that is not there: padding
            "lora": {"rank": 2, "alpha": 4},
        },
        "data": {
            "sources": {"general": str(prompts / "general"), "ocr": str(prompts / "ocr")},
            "prompts_per_epoch": 3,
            "images_per_prompt": 3,
        },
        "rewards": {
            "train": [
                {"name": name, "reward": f"{toy.rewards_file}:{name}"}
                for name in ("red", "blue", "dark")
            ]
        },
        "balance": {"method": "marble", "every": 2},
        "rollout": {"steps": 3, "sampler": "euler", "batch_size": 5},
        "optim": {"lr": 1e-2},
        "train": {"steps": 2, "batch_size": 4, "timesteps_fraction": 0.7, "checkpoint_every": 0},
        "eval": {"every": 0, "prompts": 2},
        "log": {"samples_every": 0, "samples": 4},
    }


def randomise(adapter: Any, seed: int = 0, scale: float = 0.2) -> None:
    """LoRA weights that do something (B starts at zero), the same in `default` and `old`."""
    generator = torch.Generator().manual_seed(seed)
    values = {
        name: scale * torch.randn(value.shape, generator=generator)
        for name, value in adapter.lora_state().items()
    }
    for name in ("default", "old"):
        adapter.load_lora_state(name, values)
