"""Several LoRAs as one: Σ_i w_i·(α_i/r_i)·B_i A_i, exactly, with the sum of their ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from marble.errors import MarbleError
from marble.models.lora import WEIGHTS_FILE, State, read_file, write_file
from marble.models.sliders import SHARED, sliders_of

Part = tuple[State, dict[str, Any], float]
"""Weights, config (as `read_file` gives them) and the weight w_i of one LoRA."""


def merged(parts: Sequence[Part]) -> tuple[State, dict[str, Any]]:
    """The rows of all A below each other, the columns of all B side by side, B scaled by w_i.

    Averaging A and B themselves would not give the average of the products. Parts of weight 0 are
    left out, unless there is no other.
    """
    if not parts:
        raise MarbleError("name at least one LoRA to merge")
    names = set(parts[0][0])
    for state, _, _ in parts:
        odd = sorted(names ^ set(state))
        if odd:
            raise MarbleError(
                f"these LoRAs are of different models or layers: {len(odd)} names differ, "
                f"e.g. {odd[0]}"
            )
    kept = [part for part in parts if part[2] != 0] or list(parts[:1])
    scale = _scale(kept[0][1])
    merged: State = {}
    for name in parts[0][0]:
        if ".lora_A." in name:
            merged[name] = torch.cat([state[name] for state, _, _ in kept])
        else:
            columns = [state[name] * (w * _scale(config) / scale) for state, config, w in kept]
            merged[name] = torch.cat(columns, dim=1)
    rank = sum(int(config["r"]) for _, config, _ in kept)
    return merged, {**kept[0][1], "r": rank, "lora_alpha": scale * rank}


def merged_files(
    folders: Sequence[Path],
    weights: Sequence[float],
    *,
    prefer: Mapping[str, float] | None = None,
) -> tuple[State, dict[str, Any]]:
    """The sum of the LoRAs in these folders.

    prefer: slider weights; for one LoRA, which has sliders.
    """
    if prefer is not None and len(folders) > 1:
        raise MarbleError("--prefer is for one steered run; --weights averages several LoRAs")
    parts: list[Part] = []
    for folder, weight in zip(folders, weights):
        state, config = read_file(folder)
        if prefer is None:
            parts.append((state, config, weight))
            continue
        sliders = sliders_of(folder)
        own = dict(zip((SHARED, *sliders.names), (1.0, *sliders.weights(prefer))))
        for name, part in sliders.split(state).items():
            rank = next(len(v) for k, v in part.items() if ".lora_A." in k)
            alpha = config["lora_alpha"] * rank / config["r"]
            parts.append((part, {**config, "r": rank, "lora_alpha": alpha}, weight * own[name]))
    return merged(parts)


def write_merged(out: Path, state: State, config: Mapping[str, Any]) -> Path:
    """Writes a sum as an ordinary LoRA; its file."""
    file = out / WEIGHTS_FILE
    write_file(file, {k: v.contiguous() for k, v in state.items()}, config)
    return file


def _scale(config: dict[str, Any]) -> float:
    return float(config["lora_alpha"]) / int(config["r"])
