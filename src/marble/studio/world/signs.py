"""Signs: a board in one of four shapes with a word as large as the board allows."""

import io
from functools import cache, lru_cache
from importlib.resources import files

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from marble.studio.world.scene import SIZE, Sign
from marble.studio.world.sprites import PAINT, RGB

FONTS: tuple[str, ...] = (
    "Fredoka_600SemiBold.ttf",
    "LilitaOne_400Regular.ttf",
    "BreeSerif_400Regular.ttf",
    "Oswald_600SemiBold.ttf",
    "Rubik_700Bold.ttf",
)
_AA = 4  # supersampling
_INK: RGB = (38, 34, 48)
_WOOD: RGB = (140, 94, 60)
_LIGHT_BOARDS = ("yellow", "white", "pink", "orange")  # these carry dark letters

# board -> (left, top, right, bottom) of the board and (width, height) left for the word, in pixels
_FRAME: dict[str, tuple[int, int, int, int]] = {
    "sign": (2, 16, 62, 44),
    "banner": (2, 20, 62, 46),
    "poster": (3, 9, 61, 55),
    "label": (2, 18, 62, 46),
}
_ROOM: dict[str, tuple[int, int]] = {
    "sign": (53, 21),
    "banner": (54, 19),
    "poster": (51, 28),
    "label": (49, 20),
}


@cache
def _font(index: int, size: int) -> ImageFont.FreeTypeFont:
    path = files("marble.studio") / "assets" / "world" / FONTS[index]
    return ImageFont.truetype(io.BytesIO(path.read_bytes()), size)


@lru_cache(maxsize=4096)
def lettering(text: str, font: int, room: tuple[int, int]) -> Image.Image:
    """The word as a mask, `_AA` times supersampled, stretched to fill its room.

    Letters keep their shape within a factor: at most 1.45 times narrower or wider than drawn.
    """
    drawn = _font(font, 96)
    left, top, right, bottom = drawn.getbbox(text)
    mask = Image.new("L", (int(right - left), int(bottom - top)))
    ImageDraw.Draw(mask).text((-left, -top), text, font=drawn, fill=255)
    width, height = room[0] * _AA, room[1] * _AA
    fill = min(width / mask.width, height / mask.height)
    stretch = 1.25
    w = min(width, round(mask.width * fill * stretch))
    h = min(height, round(mask.height * fill * stretch))
    return mask.resize((w, h), Image.Resampling.LANCZOS)


def draw_sign(background: np.ndarray, sign: Sign) -> np.ndarray:
    """The background (float32 [64, 64, 3]) with the sign on it."""
    dark, base, _ = PAINT[sign.color]
    big = Image.new("RGBA", (SIZE * _AA, SIZE * _AA))
    draw = ImageDraw.Draw(big)
    x0, y0, x1, y1 = (v * _AA for v in _FRAME[sign.board])
    y0, y1 = y0 + sign.lean * _AA, y1 + sign.lean * _AA
    _BOARD[sign.board](draw, (x0, y0, x1, y1), base, dark)
    ink = _INK if sign.color in _LIGHT_BOARDS else (255, 255, 255)
    word = lettering(sign.text, sign.font, _ROOM[sign.board])
    at = ((x0 + x1 - word.width) // 2, (y0 + y1 - word.height) // 2)
    big.paste((*ink, 255), (*at, at[0] + word.width, at[1] + word.height), word)
    small = np.asarray(big.convert("RGBa").reduce(_AA), dtype=np.float32)
    return background * (1 - small[..., 3:] / 255) + small[..., :3]


Corners = tuple[int, int, int, int]


def _rounded(draw: ImageDraw.ImageDraw, box: Corners, radius: int, fill: RGB) -> None:
    draw.rounded_rectangle(box, radius=radius * _AA, fill=fill)


def _sign(draw: ImageDraw.ImageDraw, box: Corners, base: RGB, dark: RGB) -> None:
    x0, y0, x1, y1 = box
    for x in (15, 46):
        draw.rectangle([x * _AA, y1 - 4 * _AA, (x + 3) * _AA, SIZE * _AA], fill=_WOOD)
    _rounded(draw, box, 5, dark)
    inset = _AA
    _rounded(draw, (x0 + inset, y0 + inset, x1 - inset, y1 - inset), 4, base)


def _banner(draw: ImageDraw.ImageDraw, box: Corners, base: RGB, dark: RGB) -> None:
    x0, y0, x1, y1 = box
    for x, top in ((x0 + 4 * _AA, 0), (x1 - 4 * _AA, 0)):
        draw.line([x, top, x, y0 + _AA], fill=dark, width=_AA + 1)
    draw.rectangle(box, fill=base)
    draw.rectangle([x0, y0, x1, y0 + 2 * _AA], fill=dark)
    step = (x1 - x0) / 6
    for i in range(6):  # scalloped lower edge
        left = x0 + i * step
        draw.pieslice([left, y1 - 4 * _AA, left + step, y1 + 4 * _AA], 0, 180, fill=base)


def _poster(draw: ImageDraw.ImageDraw, box: Corners, base: RGB, dark: RGB) -> None:
    x0, y0, x1, y1 = box
    draw.rectangle(box, fill=dark)
    draw.rectangle([x0 + 2 * _AA, y0 + 2 * _AA, x1 - 2 * _AA, y1 - 2 * _AA], fill=base)
    for y in (y0 + 5 * _AA, y1 - 6 * _AA):
        draw.rectangle([x0 + 8 * _AA, y, x1 - 8 * _AA, y + _AA], fill=dark)


def _label(draw: ImageDraw.ImageDraw, box: Corners, base: RGB, dark: RGB) -> None:
    x0, y0, x1, y1 = box
    _rounded(draw, box, 13, dark)
    inset = int(1.5 * _AA)
    _rounded(draw, (x0 + inset, y0 + inset, x1 - inset, y1 - inset), 12, base)


_BOARD = {"sign": _sign, "banner": _banner, "poster": _poster, "label": _label}
