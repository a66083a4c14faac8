"""One CLIP implementation for every reward of that family, loaded once and shared."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from marble.errors import MarbleError
from marble.replay import Replayed, is_small
from marble.rewards.base import Reward
from marble.rewards.openclip import load_openclip
from marble.rewards.precision import as_dtype, kept_in
from marble.rewards.preprocess import Preprocess
from marble.rewards.presence import Wanted, present
from marble.rewards.weights import local_folder, local_weights, quiet_loading


class ClipEncoder:
    """A ``CLIPModel`` with its tokenizer and preprocessing, giving unit-length embeddings.

    Rewards on the same checkpoint, device and precision share one instance (:func:`load_clip`),
    and the embeddings of the latest pictures are kept, so that two rewards that look at the same
    batch run the image tower once.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        preprocess: Preprocess,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        batch_size: int = 64,
    ) -> None:
        self.model = kept_in(model, dtype).to(device)
        self.tokenizer = tokenizer
        self.preprocess = preprocess
        self.device = torch.device(device)
        self.dtype = dtype
        self.batch_size = batch_size
        self.max_tokens = int(model.config.text_config.max_position_embeddings)
        self._latest: tuple[weakref.ref[torch.Tensor], int, torch.Tensor] | None = None
        replays = self.device.type == "cuda" and is_small(model)
        self._tower = Replayed(self._image_tower, "a CLIP model") if replays else self._image_tower

    @property
    def logit_scale(self) -> float:
        return float(self.model.logit_scale.float().exp())

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return int(self.model.config.projection_dim)

    @torch.no_grad()
    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 ``[n, 3, H, W]`` → unit-length fp32 ``[n, d]`` on the encoder's device."""
        if self._latest is not None:
            seen, version, embeddings = self._latest
            if seen() is images and version == images._version:
                return embeddings
        chunks = (chunk.to(self.device) for chunk in images.split(self.batch_size))
        embeddings = torch.cat([self.embed_pixels(self.preprocess(chunk)) for chunk in chunks])
        self._latest = (weakref.ref(images), images._version, embeddings)
        return embeddings

    @torch.no_grad()
    def embed_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """The same for pictures that are preprocessed already, in batches."""
        parts = []
        for chunk in pixels.split(self.batch_size):
            parts.append(self._tower(chunk.to(self.device)))
        return F.normalize(torch.cat(parts).float(), dim=-1)

    def _image_tower(self, pixels: torch.Tensor) -> torch.Tensor:
        return _features(self.model.get_image_features(pixel_values=pixels))

    @torch.no_grad()
    def embed_texts(self, prompts: list[str]) -> torch.Tensor:
        """Unit-length fp32 ``[n, d]``; a prompt that occurs twice is encoded once."""
        unique = list(dict.fromkeys(prompts))
        parts = []
        for start in range(0, len(unique), self.batch_size):
            tokens = self.tokenizer(
                unique[start : start + self.batch_size],
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            )
            features = self.model.get_text_features(
                input_ids=tokens["input_ids"].to(self.device),
                attention_mask=tokens["attention_mask"].to(self.device),
            )
            parts.append(_features(features))
        embeddings = F.normalize(torch.cat(parts).float(), dim=-1)
        row = {prompt: i for i, prompt in enumerate(unique)}
        return embeddings[[row[prompt] for prompt in prompts]]

    def cosines(self, images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """cos(image i, prompt i), fp32 ``[n]`` on the CPU."""
        return (self.embed_images(images) * self.embed_texts(prompts)).sum(-1).cpu()


def _features(output: Any) -> torch.Tensor:
    """transformers 4 gives the projected features, transformers 5 an object that holds them."""
    return output if isinstance(output, torch.Tensor) else output.pooler_output


_shared: weakref.WeakValueDictionary[tuple[str, ...], ClipEncoder] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def load_clip(
    path: str | Path,
    *,
    revision: str | None = None,
    processor: str | Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    batch_size: int = 64,
    pad: bool = False,
) -> ClipEncoder:
    """The encoder of a checkpoint folder or hub id, shared between all who ask for the same one.

    ``processor`` names where tokenizer and preprocessing come from when the checkpoint itself
    does not carry them (PickScore); a checkpoint that is a single ``.pt`` file of open_clip's
    (HPSv2) takes its configuration from there as well. ``pad``: see :class:`Preprocess`.
    """
    from transformers import AutoTokenizer, CLIPModel

    dtype = as_dtype(dtype)
    asked = (path, revision, processor, torch.device(device), dtype, pad)
    key = tuple(str(part) for part in asked)
    with _lock:
        encoder = _shared.get(key)
        if encoder is None:
            place = local_weights(path, revision)
            if place.is_file() and processor is None:
                raise MarbleError(f"{place} is a bare file: give its base model as `processor:`")
            extras = local_folder(processor, None, weights=False) if processor else place
            try:
                if place.is_file():
                    model = load_openclip(place, extras)
                else:
                    with quiet_loading():
                        model = CLIPModel.from_pretrained(place, dtype=torch.float32)
                tokenizer = AutoTokenizer.from_pretrained(extras)
            except MarbleError:
                raise
            except Exception as error:
                raise MarbleError(f"cannot load the CLIP model in {place}: {error}") from error
            preprocess = replace(Preprocess.from_folder(extras), pad=pad)
            encoder = ClipEncoder(
                model, tokenizer, preprocess, device=device, dtype=dtype, batch_size=batch_size
            )
            _shared[key] = encoder
        return encoder


class ClipReward(Reward):
    """What the CLIP-family rewards have in common: which checkpoint, where, in which precision."""

    default_path: str = ""
    default_revision: str | None = None
    default_processor: str | None = None
    pads: bool = False
    """Pictures that are not square are padded, not cropped."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        revision: str | None = None,
        processor: str | Path | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str = "fp32",
        batch_size: int = 64,
        name: str | None = None,
    ) -> None:
        if path is None:
            path, revision = self.default_path, revision or self.default_revision
            processor = processor or self.default_processor
        self._options: dict[str, Any] = {
            "path": path,
            "revision": revision,
            "processor": processor,
            "dtype": dtype,
            "batch_size": batch_size,
            "pad": self.pads,
        }
        self.encoder = load_clip(device=device, **self._options)
        if name is not None:
            self.name = name

    @classmethod
    def wanted(
        cls,
        *,
        path: str | Path | None = None,
        revision: str | None = None,
        processor: str | Path | None = None,
        **options: Any,
    ) -> list[Wanted]:
        """The checkpoints that these options load."""
        if path is None:
            path, revision = cls.default_path, revision or cls.default_revision
            processor = processor or cls.default_processor
        extras = [Wanted(processor, weights=False)] if processor else []
        return [Wanted(path, revision), *extras]

    @classmethod
    def check(cls, **options: Any) -> str:
        return f"weights in {present(*cls.wanted(**options))[0]}"

    def to(self, device: str | torch.device) -> ClipReward:
        if torch.device(device) != self.encoder.device:
            self.encoder = load_clip(device=device, **self._options)
        return self
