"""Objects as small RGBA pictures: loaded once from the atlas, tinted, resized and cached.

A sprite carries a soft drop shadow of `PAD` pixels around its box, so that it stands out from
any background; the box of an object is the box of its visible shape without the shadow.
"""

import json
from functools import cache, lru_cache
from importlib.resources import files

import numpy as np
from PIL import Image, ImageFilter

from marble.studio.world.language import COLORS

PAD = 3
_SHADOW = 0.30  # opacity of the drop shadow
_SHADOW_DROP = 1  # pixels it falls

RGB = tuple[int, int, int]

# color -> (shade of the darkest parts, the colour itself, shade of the lightest parts)
PAINT: dict[str, tuple[RGB, RGB, RGB]] = {
    "red": ((104, 8, 24), (226, 36, 46), (255, 196, 190)),
    "orange": ((140, 56, 0), (255, 138, 12), (255, 228, 184)),
    "yellow": ((150, 104, 0), (255, 214, 20), (255, 250, 205)),
    "green": ((8, 74, 36), (44, 172, 70), (200, 244, 200)),
    "blue": ((12, 34, 116), (36, 108, 232), (192, 224, 255)),
    "purple": ((56, 14, 104), (142, 62, 206), (228, 202, 255)),
    "pink": ((156, 26, 92), (255, 120, 186), (255, 222, 240)),
    "black": ((8, 8, 10), (42, 42, 48), (150, 152, 160)),
    "white": ((118, 124, 138), (244, 246, 250), (255, 255, 255)),
}
assert tuple(PAINT) == COLORS


@cache
def _atlas() -> dict[str, Image.Image]:
    folder = files("marble.studio") / "assets" / "world"
    index = json.loads((folder / "sprites.json").read_text())
    with (folder / "sprites.png").open("rb") as file:
        picture = Image.open(file).convert("RGBA")
    return {name: picture.crop(entry["box"]) for name, entry in index.items()}


def aspect(name: str) -> float:
    """Width divided by height of the object's shape."""
    sprite = _atlas()[name]
    return sprite.width / sprite.height


@lru_cache(maxsize=512)
def tinted(name: str, color: str | None) -> Image.Image:
    """The object at atlas size, in its natural colours (None) or painted in one colour.

    Painting keeps shading: the sprite's luminance is normalised so that its typical value l₀
    takes the colour itself, darker parts run to the colour's shade and lighter parts to its
    highlight. So wheels stay dark and windows stay light whatever the colour.
    """
    sprite = _atlas()[name]
    if color is None:
        return sprite
    rgba = np.asarray(sprite, dtype=np.float32)
    light = rgba[..., :3] @ np.array([0.299, 0.587, 0.114], dtype=np.float32) / 255
    visible = light[rgba[..., 3] > 128]
    low, typical, high = np.quantile(visible, [0.02, 0.5, 0.98])
    low, high = min(low, typical - 0.4), max(high, typical + 0.2)
    dark, base, bright = (np.array(c, dtype=np.float32) for c in PAINT[color])
    down = np.clip((light - low) / (typical - low), 0, 1)[..., None]
    up = np.clip((light - typical) / (high - typical), 0, 1)[..., None]
    shaded, lit = dark + (base - dark) * down, base + (bright - base) * up
    rgb = np.where(light[..., None] < typical, shaded, lit)
    out = np.concatenate([rgb, rgba[..., 3:]], axis=-1)
    return Image.fromarray(out.round().astype(np.uint8), "RGBA")


@lru_cache(maxsize=40_000)
def sprite(
    name: str, color: str | None, size: tuple[int, int], flip: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The object at `size` (width, height) with its shadow, `PAD` pixels larger on every side.

    Returns (premultiplied colour float32 [h, w, 3] in 0…255, transmission 1 − α [h, w, 1]), so
    drawing it on a picture is `picture * transmission + colour`.
    """
    image = tinted(name, color).convert("RGBa").resize(size, Image.Resampling.BOX)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    w, h = size[0] + 2 * PAD, size[1] + 2 * PAD
    canvas = np.zeros((h, w, 4), dtype=np.float32)
    canvas[PAD:-PAD, PAD:-PAD] = np.asarray(image)
    alpha = Image.fromarray(canvas[..., 3].astype(np.uint8))
    soft = np.asarray(alpha.filter(ImageFilter.GaussianBlur(1.2)), dtype=np.float32) / 255
    shadow = _SHADOW * np.roll(soft, _SHADOW_DROP, axis=0)
    see_through = (1 - canvas[..., 3] / 255) * (1 - shadow)
    return canvas[..., :3], see_through[..., None]


@lru_cache(maxsize=512)
def rim_colour(name: str, color: str | None) -> RGB:
    """Mean colour of the outer ring of the object: what the background must contrast with."""
    rgba = np.asarray(tinted(name, color), dtype=np.float32)
    solid = Image.fromarray((rgba[..., 3] > 128).astype(np.uint8) * 255)
    frame = Image.new("L", (solid.width + 12, solid.height + 12))
    frame.paste(solid, (6, 6))
    inner = np.asarray(frame.filter(ImageFilter.MinFilter(13)))[6:-6, 6:-6] > 0
    ring = (rgba[..., 3] > 128) & ~inner
    red, green, blue = rgba[..., :3][ring].mean(axis=0)
    return round(red), round(green), round(blue)
