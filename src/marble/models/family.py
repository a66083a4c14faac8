"""A family of models: all that the rest of the project knows about FLUX, Qwen-Image and the like.

One file a family, with a `Family` and its `PipelineAdapter`, and one line in `registry.py` (or an
entry point, or `model.family: module:Class` in a recipe). Nothing else names a family.
Importing a family's file must stay cheap: diffusers is imported inside its functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from marble.errors import MarbleError
from marble.models.folder import json_object, pipeline_index, tensor_shapes
from marble.models.pipeline import PipelineAdapter, Section

__all__ = ["Facts", "Family", "Layout", "NoOptions", "Published", "Section"]

Shapes = Mapping[str, Sequence[int]]


class NoOptions(Section):
    """A family without recipe fields of its own."""


@dataclass(frozen=True)
class Layout:
    """How pictures and text become tokens, from a pipeline's configuration files."""

    layers: int
    """Transformer blocks that every token passes."""
    width: int
    channels: int
    """Of the latents, as the adapter keeps them."""
    factor: int
    """Pixels a side of one latent, as the adapter keeps them."""
    patch: int
    """Latents a side of one token."""
    resolution: int
    """Picture side in pixels unless a recipe says otherwise."""
    text: int
    """Text tokens beside the picture's, at most, unless a recipe says otherwise."""
    fixed_text: int = 0
    """Of those, tokens that `max_sequence_length` does not change."""


@dataclass(frozen=True)
class Facts:
    """What memory and doctor ask: sizes, without loading anything."""

    parts: Mapping[str, int]
    """Numbers in the weight files of every part of the pipeline."""
    layout: Layout
    shapes: Shapes = field(repr=False)
    """Of the transformer's weights, by name."""
    lora_targets: Sequence[str] = field(repr=False)

    def tokens(self, resolution: int | None = None, text: int | None = None) -> int:
        """Of one picture and its prompt."""
        at = self.layout
        side = (resolution or at.resolution) // (at.factor * at.patch)
        return side * side + (at.text if text is None else at.fixed_text + text)

    def latents(self, resolution: int | None = None) -> int:
        """Numbers in one picture's latents."""
        side = (resolution or self.layout.resolution) // self.layout.factor
        return self.layout.channels * side * side

    def lora_parameters(self, rank: int, targets: Sequence[str] | None = None) -> int:
        """Of all adapted layers, r·(in + out) each."""
        return sum(rank * (shape[0] + shape[1]) for shape in self._adapted(targets))

    def _adapted(self, targets: Sequence[str] | None) -> Iterator[Sequence[int]]:
        endings = tuple(f".{e}" for e in (self.lora_targets if targets is None else targets))
        for name, shape in self.shapes.items():
            if name.endswith(".weight") and f".{name.removesuffix('.weight')}".endswith(endings):
                yield shape


@dataclass(frozen=True)
class Published:
    """A checkpoint on the hub, so that memory is known before it is downloaded."""

    transformer: Mapping[str, Any]
    """Its transformer's configuration, where it differs from the class's defaults."""
    parts: Mapping[str, int]
    """Numbers in the weight files of the other parts."""
    resolution: int
    gated: bool = False
    """Whether a licence has to be accepted on its page first."""
    spare: Sequence[str] = ()
    """Files of the repository that the pipeline does not need."""


KL_VAE: Mapping[str, Any] = MappingProxyType(
    {
        "block_out_channels": (128, 256, 512, 512),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "layers_per_block": 2,
        "latent_channels": 16,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }
)
"""The autoencoder of 16 channels that several families share."""


@dataclass(frozen=True)
class Rest:
    """What a published pipeline has beside its transformer, as far as speed depends on it."""

    vae: str
    vae_config: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    ragged: bool = False
    """Prompts keep lengths of their own."""
    extra_tokens: int = 0
    """Text tokens that come before those of `max_sequence_length`."""


class Family(ABC):
    """Facts and files of a family. Never instantiated: everything belongs to the class."""

    pipeline: ClassVar[str]
    """The pipeline's class in diffusers, as model_index.json names it."""
    transformer: ClassVar[str]
    """The transformer's class in diffusers."""
    parts: ClassVar[tuple[str, ...]] = (
        "transformer",
        "vae",
        "scheduler",
        "text_encoder",
        "tokenizer",
    )
    """Parts without which it cannot work."""
    adapter: ClassVar[type[PipelineAdapter]]
    Options: ClassVar[type[Section]] = NoOptions
    """Recipe fields of this family alone, under `model.options`."""
    published: ClassVar[Mapping[str, Published]] = {}
    """Hub id → what is known about it."""
    rest: ClassVar[Rest | None] = None
    """For benchmarks of true size with random weights; None: `marble bench loop` has none."""

    @classmethod
    @abstractmethod
    def layout(cls, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Layout:
        """From the two configurations; `vae` is empty for a checkpoint that is not here."""

    @classmethod
    @abstractmethod
    def tiny(cls, folder: str | Path, *, seed: int = 0) -> Path:
        """Saves a random pipeline of a few thousand weights in the layout of the hub."""

    @classmethod
    def arguments(cls, *, guidance: float, options: Section) -> dict[str, Any]:
        """How the stock pipeline is called for this guidance, beside steps, size and text length.

        Model cards show it, and every family's pictures are compared with those of this call.
        """
        return {"guidance_scale": guidance}

    @classmethod
    def check(cls, folder: Path) -> None:
        """Raises unless model_index.json names every part."""
        index = pipeline_index(folder)
        for part in cls.parts:
            if (index.get(part) or [None])[0] is None:
                raise MarbleError(
                    f"{folder}: a {cls.pipeline} needs a {part}, which model_index.json lacks"
                )

    @classmethod
    def facts(cls, folder: Path) -> Facts:
        """Counted from the headers of the weight files."""
        index = pipeline_index(folder)
        parts: dict[str, int] = {}
        for name, entry in index.items():
            if isinstance(entry, list) and entry[0] is not None:
                count = _numbers(tensor_shapes(folder / name))
                parts |= {name: count} if count else {}
        config = _defaults(cls.transformer) | json_object(folder / "transformer" / "config.json")
        vae = json_object(folder / "vae" / "config.json")
        shapes = tensor_shapes(folder / "transformer")
        return Facts(parts, cls.layout(config, vae), shapes, cls.adapter.targets_in(shapes))

    @classmethod
    def published_facts(cls, hub_id: str) -> Facts:
        """The same of a checkpoint that is not here, from its published configuration."""
        known = cls.published[hub_id]
        shapes = _built(cls.transformer, hub_id, tuple(known.transformer.items()))
        layout = cls.layout(_defaults(cls.transformer) | dict(known.transformer), {})
        parts = {"transformer": _numbers(shapes), **known.parts}
        layout = Layout(**{**vars(layout), "resolution": known.resolution})
        return Facts(parts, layout, shapes, cls.adapter.targets_in(shapes))


def _numbers(shapes: Shapes) -> int:
    total = 0
    for shape in shapes.values():
        count = 1
        for n in shape:
            count *= n
        total += count
    return total


def _class(name: str) -> Any:
    import diffusers

    from marble.models.quiet import quiet

    with quiet():  # transformers announces its PIL fallback where torchvision is absent
        return getattr(diffusers, name)


def _defaults(transformer: str) -> dict[str, Any]:
    """What a configuration file may leave out."""
    from inspect import signature

    parameters = signature(_class(transformer).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@lru_cache(maxsize=8)
def _built(transformer: str, hub_id: str, config: tuple[tuple[str, Any], ...]) -> Shapes:
    """Shapes of a transformer that is built without memory, on the meta device."""
    import torch

    with torch.device("meta"):
        model = _class(transformer)(**dict(config))
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}
