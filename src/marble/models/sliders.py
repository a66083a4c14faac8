"""Sliders: one LoRA whose rank is shared out among rewards, and a gate on each share.

    y = W x + (α/r)·B diag(s) A x,   s = (1 … 1, s_1 … s_1, …, s_K … s_K)

The first rows of A (columns of B) are common to all, the next ones belong to slider 1, and so on.
So K+1 small LoRAs train as one, at its cost; with all weights 1 it is an ordinary LoRA, and each
share of it is an ordinary LoRA too, whose adapter weight in diffusers is s_k.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marble.errors import MarbleError
from marble.models import lora

SHARED = "shared"
INDEX, SLIDERS = "sliders.json", "sliders"
"""What a LoRA with sliders has beside it: a small JSON, and a folder with one file per part."""


@dataclass(frozen=True)
class Sliders:
    """How the rank is shared out: `shared` to all, `each` to every slider."""

    names: tuple[str, ...]
    shared: int
    each: int
    most: float
    """Weights from 0 to this were trained; 1 is the default."""

    @property
    def top(self) -> float:
        """The largest weight: of K weights with the sum K, none can be more than K."""
        return min(self.most, float(len(self.names)))

    @property
    def parts(self) -> dict[str, slice]:
        """The rows of A and columns of B of every part, the shared one first."""
        parts = {SHARED: slice(0, self.shared)}
        for k, name in enumerate(self.names):
            start = self.shared + k * self.each
            parts[name] = slice(start, start + self.each)
        return parts

    def gates(self, weights_nK: Sequence[Sequence[float]]) -> Tensor:
        """[n, rank]: the weight of every row of A, for n samples."""
        weights = torch.tensor(weights_nK, dtype=torch.float32).view(-1, len(self.names))
        return torch.cat(
            [weights.new_ones(len(weights), self.shared), weights.repeat_interleave(self.each, 1)],
            dim=1,
        )

    def weights(self, prefer: Mapping[str, float]) -> list[float]:
        """One weight per slider; 1 where nothing is said. The last part of a name will do."""
        found: dict[str, float] = {}
        for name, value in prefer.items():
            meant = self._meant(name)
            if meant in found:
                raise MarbleError(f"slider {meant}: it has two weights; give it one")
            if not 0 <= value <= self.top:
                wider = value > self.top and value <= len(self.names)
                raise MarbleError(
                    f"slider {name}: its weight is {value:g}, but it was trained from 0 to "
                    f"{self.top:g}; choose one in that range"
                    + (f" (or train with balance.options.most={value:g})" if wider else "")
                )
            found[meant] = float(value)
        return [found.get(name, 1.0) for name in self.names]

    def _meant(self, name: str) -> str:
        if name in self.names:
            return name
        meant = [n for n in self.names if n.endswith(f"-{name}")]
        if len(meant) > 1:
            raise MarbleError(f"slider {name!r}: say which, {' or '.join(meant)}")
        if not meant:
            raise MarbleError(f"there is no slider {name!r}; known: {', '.join(self.names)}")
        return meant[0]

    def at(self, values: Mapping[str, Tensor], weights_K: Sequence[float]) -> lora.State:
        """The ordinary LoRA at these weights: same rank, B's columns scaled."""
        (gates,) = self.gates([weights_K])
        return {k: v * gates.to(v) if ".lora_B." in k else v for k, v in values.items()}

    def shares(self, parameters: Mapping[str, nn.Parameter]) -> list[dict[nn.Parameter, Tensor]]:
        """For every slider, which entries of the LoRA's parameters (by name) are its own."""
        found = []
        for rows in list(self.parts.values())[1:]:
            masks = {p: torch.zeros_like(p, dtype=torch.bool) for p in parameters.values()}
            for name, parameter in parameters.items():
                mask = masks[parameter]
                (mask.T if ".lora_B." in name else mask)[rows] = True
            found.append(masks)
        return found

    def split(self, values: Mapping[str, Tensor]) -> dict[str, lora.State]:
        """The K+1 LoRAs by name."""
        return {
            name: {
                k: (v[:, rows] if ".lora_B." in k else v[rows]).contiguous()
                for k, v in values.items()
            }
            for name, rows in self.parts.items()
        }

    def write(self, folder: Path) -> None:
        """The small JSON beside the LoRA files."""
        about = {
            "shared": SHARED,
            "sliders": {name: {"default": 1.0, "range": [0.0, self.top]} for name in self.names},
            "ranks": {SHARED: self.shared, "slider": self.each},
        }
        (folder / INDEX).write_text(json.dumps(about, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Sliders | None:
        """The sliders of a LoRA folder; None where it has none."""
        path = (folder if folder.is_dir() else folder.parent) / INDEX
        if not path.is_file():
            return None
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            most = max(float(one["range"][1]) for one in about["sliders"].values())
            ranks = about["ranks"]
            return cls(tuple(about["sliders"]), int(ranks[SHARED]), int(ranks["slider"]), most)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise MarbleError(f"{path}: not as marble writes it ({error!r})") from None


def sliders_of(folder: Path) -> Sliders:
    """The sliders of a LoRA folder, or an error that says how to get some."""
    found = Sliders.read(folder)
    if found is None:
        raise MarbleError(
            f"{folder}: this LoRA has no sliders ({INDEX} is not there); train with "
            "balance.method=steer (docs/steer.md)"
        )
    return found


class Gates:
    """Scales the output of every A by the gates of the samples in a forward pass, where set.

    Hooks on the layers themselves: gradients, per-sample gradients and checkpointed blocks go
    through them as through any other operation.
    """

    def __init__(self, model: nn.Module) -> None:
        self.rows: Tensor | None = None
        self._places: dict[int, Tensor] = {}
        for _, layer in lora.lora_layers(model):
            for part in layer.lora_A.values():
                part.register_forward_hook(self._scale)

    def _scale(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if self.rows is None:
            return None
        rows = self.rows.to(output)
        # Guidance asks for both halves of its batch at once: without the prompts, then with.
        rows = rows.repeat(len(output) // len(rows), 1) if len(output) != len(rows) else rows
        return output * rows.view(len(rows), *[1] * (output.dim() - 2), -1)

    @contextmanager
    def set(self, rows: Tensor) -> Iterator[None]:
        """Gates of the samples of every forward pass inside."""
        if self.rows is not None:
            raise RuntimeError("gates are set already")
        with self._held(rows):
            yield

    def only(self, chosen: slice) -> AbstractContextManager[None]:
        """Inside, forward passes are on some of the samples whose gates are set."""
        return nullcontext() if self.rows is None else self._held(self.rows[chosen])

    @contextmanager
    def _held(self, rows: Tensor) -> Iterator[None]:
        """One place in memory per number of samples: a recorded pass (`graphs`) reads there."""
        place = self._places.setdefault(len(rows), torch.empty_like(rows))
        place.copy_(rows)
        before, self.rows = self.rows, place
        try:
            yield
        finally:
            self.rows = before
