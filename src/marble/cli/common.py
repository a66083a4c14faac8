"""What several verbs share: splitting arguments, finding runs and LoRAs, printing JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from marble.errors import MarbleError
from marble.recipe import Recipe, load_recipe


def split_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Plain words and `key=value` words, in order. A path with `=` must begin with ./ or /."""
    plain = [w for w in words if "=" not in w or w.startswith((".", "/"))]
    return plain, [w for w in words if w not in plain]


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout and nothing else."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


@dataclass(frozen=True)
class Policy:
    """A model to draw with: a recipe's model, with a LoRA or untouched."""

    recipe: Recipe
    lora: Path | None
    label: str


def find_policy(target: str, recipe: str | None, overrides: list[str]) -> Policy:
    """`base`, a run folder, or a LoRA file or folder."""
    if target == "base":
        return Policy(load_recipe(recipe or "studio", overrides), None, "base")
    path = Path(target)
    if (path / "config.yaml").is_file():
        from marble.training.checkpoint import newest_complete

        checkpoint, _ = newest_complete(path / "checkpoints")
        chosen = load_recipe(recipe or str(path / "config.yaml"), overrides)
        return Policy(chosen, checkpoint / "lora", path.name)
    if path.is_file() and path.suffix == ".safetensors":
        path = path.parent
    if any(path.glob("*.safetensors")):
        return Policy(load_recipe(recipe or "studio", overrides), path, path.name)
    raise MarbleError(
        f"{target}: neither `base`, a run folder nor a LoRA (pytorch_lora_weights.safetensors)"
    )
