"""What a prompt becomes before the model sees it, and a bounded cache of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Conditioning:
    """Named tensors of one batch, first axis the sample. The names are the family's own."""

    tensors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Conditioning:
        """Some of the samples, in the order asked for; repeats are fine."""
        if isinstance(index, int):
            index = [index]
        if not isinstance(index, slice):
            index = torch.as_tensor(index)
        return Conditioning({k: v[index] for k, v in self.tensors.items()})

    def to(self, device: str | torch.device) -> Conditioning:
        return Conditioning({k: v.to(device) for k, v in self.tensors.items()})

    @staticmethod
    def cat(parts: Iterable[Conditioning]) -> Conditioning:
        parts = list(parts)
        return Conditioning({k: torch.cat([p.tensors[k] for p in parts]) for k in parts[0].tensors})


class PromptCache:
    """Prompt → its tensors on the CPU, least recently used dropped beyond `max_bytes`."""

    def __init__(self, max_bytes: int = 8 << 30) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[str, Conditioning] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, prompt: str) -> bool:
        return prompt in self._entries

    def put(self, prompt: str, row: Conditioning) -> None:
        """Stores one prompt's row; copies, so that no larger batch stays alive behind it."""
        row = Conditioning({k: v.detach().cpu().clone() for k, v in row.tensors.items()})
        if prompt in self._entries:
            self.bytes -= _size(self._entries.pop(prompt))
        self._entries[prompt] = row
        self.bytes += _size(row)
        while self.bytes > self.max_bytes and len(self._entries) > 1:
            self.bytes -= _size(self._entries.popitem(last=False)[1])

    def get(self, prompt: str) -> Conditioning:
        self._entries.move_to_end(prompt)
        return self._entries[prompt]


def _size(row: Conditioning) -> int:
    return sum(v.numel() * v.element_size() for v in row.tensors.values())
