"""Pictures made worse, to teach preference models what good pictures are not."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageFilter

from marble.errors import MarbleError


def degrade(image: np.ndarray, rng: np.random.Generator, kind: str | None = None) -> np.ndarray:
    """A worse version of a picture (uint8 [h, w, 3]), of a kind or of a random one.

    Kinds and strengths: see `DEGRADATIONS`; all are visible at 64 px, from mild to strong.
    """
    kinds = list(DEGRADATIONS)
    if kind is None:
        kind = kinds[int(rng.integers(len(kinds)))]
    if kind not in DEGRADATIONS:
        raise MarbleError(f'no degradation "{kind}"; there are {", ".join(kinds)}')
    out = DEGRADATIONS[kind](image, rng)
    return np.clip(out, 0, 255).round().astype(np.uint8)


def _blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    radius = rng.uniform(0.9, 3.0)
    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)), np.float32)


def _noise(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image + rng.normal(0, rng.uniform(10, 45), size=image.shape)


def _blotches(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Coloured noise of low frequency: how an unfinished latent decodes."""
    coarse = rng.normal(0, rng.uniform(12, 40), size=(8, 8, 3)).astype(np.float32)
    size = image.shape[1], image.shape[0]
    planes = [
        np.asarray(Image.fromarray(coarse[..., i]).resize(size, Image.Resampling.BICUBIC))
        for i in range(3)
    ]
    return image + np.stack(planes, axis=-1)


def _blocky(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    h, w = image.shape[:2]
    step = int(rng.integers(3, 7))
    small = Image.fromarray(image).resize((w // step, h // step), Image.Resampling.BOX)
    return np.asarray(small.resize((w, h), Image.Resampling.NEAREST), np.float32)


def _washed_out(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    grey = image.mean(axis=-1, keepdims=True)
    pale = grey + (image - grey) * rng.uniform(0.1, 0.4)
    return 170 + (pale - 170) * rng.uniform(0.3, 0.5)


def _too_dark(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image * rng.uniform(0.2, 0.55)


def _smeared(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    length = int(rng.integers(5, 11))
    dx, dy = ((1, 0), (0, 1), (1, 1), (1, -1))[int(rng.integers(4))]
    pad = np.pad(image.astype(np.float32), ((length, length), (length, length), (0, 0)), "edge")
    h, w = image.shape[:2]
    steps = range(-(length // 2), length - length // 2)
    moved = [
        pad[length + k * dy : length + k * dy + h, length + k * dx : length + k * dx + w]
        for k in steps
    ]
    return np.mean(moved, axis=0)


def _warped(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every pixel moved along a smooth random field of a few pixels."""
    h, w = image.shape[:2]
    field = rng.normal(0, rng.uniform(1.5, 4.5), size=(2, 7, 7)).astype(np.float32)
    shift = [np.asarray(Image.fromarray(f).resize((w, h), Image.Resampling.BICUBIC)) for f in field]
    y, x = np.mgrid[:h, :w]
    yy = np.clip((y + shift[0]).round().astype(int), 0, h - 1)
    xx = np.clip((x + shift[1]).round().astype(int), 0, w - 1)
    return image[yy, xx].astype(np.float32)


DEGRADATIONS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "blur": _blur,
    "noise": _noise,
    "blotches": _blotches,
    "blocky": _blocky,
    "washed_out": _washed_out,
    "too_dark": _too_dark,
    "smeared": _smeared,
    "warped": _warped,
}
