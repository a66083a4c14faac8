"""Decoding in 16 bits on a GPU, where pictures stay what they are in fp32.

Whether they do is measured, once, on the first pictures a process decodes: at most one level of 255
apart in 99.9 % of the numbers. A run keeps what was decided, for the one that resumes it: other
pictures might decide otherwise. fp16 has three bits more than bf16, which suffices where bf16 does
not (the studio's decoder: 99.99 % against 99.6 %). Its range is smaller: pictures that come out not
finite are decoded again in fp32.

Where the model's blocks are compiled, so is the fp16 decoder, in channels_last: compiled it is 1.4
times as fast in that layout. What is measured is then the compiled one. A program is for one number
of pictures, so that short batches are filled up (`filled`): another program takes 45 s to compile,
a picture more 6 ms. torch itself would make one for any number once it has seen two: pictures would
then depend on which batches came before, and a resumed run has not seen those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from marble.models import compiling

SAME = 0.999
"""Share of the numbers that may be at most one level apart."""
CHECKED = 4
"""Pictures that decide."""


class Decoder:
    """Latents as the decoder takes them → what it gives, in fp32.

    compiled: the fp16 decoder goes through torch.compile, which `compiling` has set up.
    """

    def __init__(
        self,
        vae: Any,
        say: Callable[[str], None],
        half: bool | None = None,
        *,
        compiled: bool = False,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        self._vae, self._say, self._given = vae, say, half is not None
        self._backend = backend
        self.compiled = compiled
        """Whether fp16 decodes compiled; false once the compiler has failed."""
        self._low: Any = self._halved() if half else None
        self.half = half
        """Whether fp16 decodes; None until that is decided."""

    def __call__(self, latents: Tensor, size: int = 0) -> Tensor:
        """size: pictures that a compiled decoder is given at once; fewer are filled up."""
        if self.half is None:
            self._decide(latents[:CHECKED], max(size, len(latents)))
        if self._low is not None:
            found = self._in_fp16(self._low, latents, size)
            if self.half is None:  # uncompiled from here on, which is not what was measured
                return self(latents, size)
            if bool(found.isfinite().all()):
                return found
        return _decode(self._vae, latents)

    def _halved(self) -> Any:
        low = halved(self._vae)
        if self.compiled:
            low.to(memory_format=torch.channels_last)
            # As a whole: what cannot be compiled must not run uncompiled unseen.
            low.decoder = torch.compile(
                low.decoder, backend=self._backend, fullgraph=True, dynamic=False
            )
            self._say("the decoder is compiled as it is first used; this takes a minute")
        return low

    def _in_fp16(self, low: Any, latents: Tensor, size: int) -> Tensor:
        if self.compiled:
            try:
                return _decode(low, filled(latents.half(), size))[: len(latents)].float()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # one of the decoder itself comes again below
                self._say(
                    "decoding goes on without torch.compile, about half as fast "
                    f"({compiling.cause_of(error)})"
                )
                self.compiled = False
                low.decoder = low.decoder._orig_mod
                self.half = self.half if self._given else None
        return _decode(low, latents.half()).float()

    def _decide(self, latents: Tensor, size: int) -> None:
        low, found = None, 0.0
        try:
            low = self._halved()
            half = levels(self._in_fp16(low, latents, size))
            found = float(((half - levels(_decode(self._vae, latents))).abs() <= 1).double().mean())
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError):  # a decoder with operations that are fp32 only
            low = None
        share = f"{100 * found:.2f} % of a picture's numbers are within one level of fp32"
        self.half = low is not None and found >= SAME
        self._low = low if self.half else None
        if self.half:
            self._say(f"decoding in fp16{', compiled' if self.compiled else ''}: {share}")
        elif low is not None:
            self._say(f"decoding in fp32: with fp16 only {share}")


def compilable(vae: Any) -> bool:
    """Whether its decoder is one of flat pictures; one of videos keeps frames between its calls."""
    decoder = getattr(vae, "decoder", None)
    return isinstance(decoder, nn.Module) and all(p.dim() < 5 for p in decoder.parameters())


def filled(latents: Tensor, size: int) -> Tensor:
    """At least `size` of them, by repeating the last, in the layout that is compiled."""
    rest = latents[-1:].repeat(max(0, size - len(latents)), 1, 1, 1)
    return torch.cat([latents, rest]).contiguous(memory_format=torch.channels_last)


def levels(decoded: Tensor) -> Tensor:
    """−1 … 1 → 0 … 255, as a picture stores it."""
    return ((decoded / 2 + 0.5).clamp(0, 1) * 255).round()


def _decode(vae: Any, latents: Tensor) -> Tensor:
    decoded: Tensor = vae.decode(latents, return_dict=False)[0]
    return decoded


def halved(vae: Any) -> Any:
    """A copy in fp16, without the half that encodes."""
    from marble.models.quiet import quiet

    encoder = getattr(vae, "encoder", None)
    with quiet():
        return copy.deepcopy(vae, {id(encoder): nn.Identity()} if encoder else {}).half()
