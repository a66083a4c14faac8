"""What a prompt becomes before the model sees it, and a bounded cache of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

MASK = "mask"


@dataclass(frozen=True)
class Conditioning:
    """Named tensors of one batch, first axis the sample. The names are the family's own.

    `ragged` names the tensors whose second axis is the text, of another length for every prompt.
    One of them is then called `mask` [B, L] and is true where there is text; padding is zero and
    comes last. Where the list is empty, all prompts have the same length.
    """

    tensors: Mapping[str, Tensor]
    ragged: tuple[str, ...] = ()
    counts: tuple[int, ...] | None = None
    """Text tokens of every sample, if known: asking a GPU for them would wait for its queue."""

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Conditioning:
        """Some of the samples, in the order asked for; repeats are fine."""
        if isinstance(index, int):
            index = [index]
        if not isinstance(index, slice):
            index = torch.as_tensor(index)
        counts = self.counts
        if counts is not None:
            chosen = range(len(self))[index] if isinstance(index, slice) else index.tolist()
            counts = tuple(counts[i] for i in chosen)
        return self._with({k: v[index] for k, v in self.tensors.items()}, counts)

    def to(self, device: str | torch.device) -> Conditioning:
        # To a GPU without waiting for it; a copy from one must be there when it is read.
        away = torch.device(device).type != "cpu"
        moved = {k: v.to(device, non_blocking=away) for k, v in self.tensors.items()}
        return self._with(moved, self.counts)

    def trimmed(self) -> Conditioning:
        """Without the padding that all of these samples share.

        The cache keeps each prompt at its own length: what a batch is padded to then depends on the
        prompts in it alone, never on which others were encoded at the same time.
        """
        if not self.ragged:
            return self
        counts, longest = self.lengths(), max(self.lengths())
        cut = {k: v[:, :longest] if k in self.ragged else v for k, v in self.tensors.items()}
        return self._with(cut, counts)

    def lengths(self) -> tuple[int, ...]:
        """Text tokens of every sample."""
        if self.counts is not None:
            return self.counts
        return tuple(int(n) for n in self.tensors[MASK].sum(1).tolist())

    @staticmethod
    def cat(parts: Iterable[Conditioning]) -> Conditioning:
        """All samples in one batch; ragged tensors are padded with zeros to the longest."""
        parts = list(parts)
        first = parts[0]
        joined = {}
        for name in first.tensors:
            values = [part.tensors[name] for part in parts]
            if name in first.ragged:
                longest = max(v.shape[1] for v in values)
                values = [_padded(v, longest) for v in values]
            joined[name] = torch.cat(values)
        known = [part.counts for part in parts if part.counts is not None]
        counts = tuple(n for part in known for n in part) if len(known) == len(parts) else None
        return first._with(joined, counts)

    def _with(self, tensors: Mapping[str, Tensor], counts: tuple[int, ...] | None) -> Conditioning:
        return Conditioning(tensors, self.ragged, counts)


def _padded(value: Tensor, length: int) -> Tensor:
    missing = length - value.shape[1]
    return F.pad(value, (0, 0) * (value.dim() - 2) + (0, missing)) if missing else value


class PromptCache:
    """Prompt → its tensors on `device`, least recently used dropped beyond `max_bytes`."""

    def __init__(self, max_bytes: int = 8 << 30, device: str | torch.device = "cpu") -> None:
        self.max_bytes, self.device = max_bytes, device
        self.bytes = 0
        self._entries: OrderedDict[str, Conditioning] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, prompt: str) -> bool:
        return prompt in self._entries

    def put(self, prompt: str, row: Conditioning) -> None:
        """Stores one prompt's row; copies, so that no larger batch stays alive behind it."""
        tensors = {k: v.detach().to(self.device, copy=True) for k, v in row.tensors.items()}
        row = row._with(tensors, row.counts)
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
