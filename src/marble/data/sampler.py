"""The prompts of an epoch: groups of samples, stratified over sources.

Everything is a pure function of (seed, epoch), so resuming needs only the epoch number, and the
number of ranks or the batch size never changes what is drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marble.data.prompts import Prompt
from marble.errors import MarbleError

# Weyl's sequence with the golden ratio: the most even spread of offsets over epochs.
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Sample:
    """One picture to make. `group`, `index` and `seed` are unique over the whole run."""

    prompt: Prompt
    group: int
    seed: int
    index: int
    prefer: tuple[float, ...] | None = None
    """Slider weights it is drawn and trained under, the same for the whole group; None: 1 each."""
    start: int | None = None
    """Seed of the group's common first latents, for samplers that add noise; None: `seed`."""


def sample_seed(run_seed: int, index: int) -> int:
    """63-bit seed of the run's sample `index`; well mixed, so neighbours share nothing."""
    return _hash(run_seed, "sample", index) >> 1


def held_out(prompts: Sequence[Prompt], count: int | None, seed: int) -> list[Prompt]:
    """A fixed random subset of `count` prompts (all when None), in file order."""
    if count is None or count >= len(prompts):
        return list(prompts)
    rng = np.random.default_rng(_hash(seed, "held-out"))
    return [prompts[i] for i in sorted(rng.permutation(len(prompts))[:count])]


class GroupSampler:
    """Draws `prompts_per_epoch` groups of `images_per_prompt` samples.

    Sources get seats in proportion to `shares`: every epoch each source has the floor or the
    ceiling of its exact quota, and over epochs the mean is the quota. Within a source, prompts
    come without replacement: a full shuffled pass before any prompt returns.
    """

    def __init__(
        self,
        prompts_by_source: Mapping[str, Sequence[Prompt]],
        shares: Mapping[str, float] | None = None,
        *,
        prompts_per_epoch: int,
        images_per_prompt: int,
        seed: int = 0,
    ) -> None:
        if images_per_prompt < 2:
            raise MarbleError(
                f"data.images_per_prompt={images_per_prompt}: an advantage compares the pictures "
                "of one prompt, so a group needs at least 2"
            )
        if prompts_per_epoch < 1:
            raise MarbleError(f"data.prompts_per_epoch={prompts_per_epoch}: needs at least 1")
        if not prompts_by_source:
            raise MarbleError("data.sources: no prompt source given")
        for name, prompts in prompts_by_source.items():
            if not prompts:
                raise MarbleError(f"data.sources.{name}: has no prompts")
        self.prompts = {name: list(prompts) for name, prompts in prompts_by_source.items()}
        self.prompts_per_epoch = prompts_per_epoch
        self.images_per_prompt = images_per_prompt
        self.seed = seed
        shares = dict(shares or {name: 1.0 for name in self.prompts})
        if set(shares) != set(self.prompts):
            odd = sorted(set(shares) ^ set(self.prompts))
            raise MarbleError(f"shares and sources differ in: {', '.join(odd)}")
        weights = np.array([shares[name] for name in self.prompts], dtype=np.float64)
        if not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
            raise MarbleError("data.sources: shares must be non-negative and not all zero")
        self._quota_S = prompts_per_epoch * weights / weights.sum()
        self._offset = _hash(seed, "offset") / 2**64

    @property
    def samples_per_epoch(self) -> int:
        return self.prompts_per_epoch * self.images_per_prompt

    def counts(self, epoch: int) -> dict[str, int]:
        """Groups each source has in `epoch`."""
        return dict(zip(self.prompts, self._counts(epoch, epoch + 1)[0].tolist()))

    def epoch(self, n: int) -> list[Sample]:
        """The samples of epoch `n`, the samples of a group side by side."""
        if n < 0:
            raise ValueError(f"epoch must be ≥ 0, got {n}")
        before_S = self._counts(0, n).sum(axis=0)
        now_S = self._counts(n, n + 1)[0]
        chosen: list[Prompt] = []
        for source, start, count in zip(self.prompts, before_S.tolist(), now_S.tolist()):
            chosen += self._stream(source, start, count)
        # Mixed, so that a micro-batch (or a probe of some) sees every source.
        order = np.random.default_rng(_hash(self.seed, "order", n)).permutation(len(chosen))
        samples = []
        for place, which in enumerate(order):
            group = n * self.prompts_per_epoch + place
            first = group * self.images_per_prompt
            start = sample_seed(self.seed, first)
            for index in range(first, first + self.images_per_prompt):
                seed = sample_seed(self.seed, index)
                samples.append(Sample(chosen[which], group, seed, index, start=start))
        return samples

    def _counts(self, first: int, last: int) -> np.ndarray:
        """[epochs, S] integer seats: systematic rounding of the quotas.

        With cumulative quotas Q_0 = 0 … Q_S = P and an offset u in [0, 1), source s gets
        ⌊Q_s + u⌋ − ⌊Q_{s−1} + u⌋. That is its quota's floor or ceiling, sums to P, and for u
        uniform has the quota as its mean.
        """
        offset_E = np.mod(self._offset + _GOLDEN * np.arange(first, last), 1.0)
        edges_S = np.concatenate([[0.0], np.cumsum(self._quota_S)])
        edges_S[-1] = self.prompts_per_epoch
        return np.diff(np.floor(edges_S[None] + offset_E[:, None] + 1e-9), axis=1).astype(np.int64)

    def _stream(self, source: str, start: int, count: int) -> list[Prompt]:
        """Prompts `start` … `start+count` of the endless sequence of shuffled passes."""
        prompts = self.prompts[source]
        out: list[Prompt] = []
        while len(out) < count:
            turn, place = divmod(start + len(out), len(prompts))
            order = np.random.default_rng(_hash(self.seed, source, turn)).permutation(len(prompts))
            out += [prompts[i] for i in order[place : place + count - len(out)]]
        return out


def _hash(*parts: object) -> int:
    """64 well-mixed bits of the parts; the same on every machine and Python."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
