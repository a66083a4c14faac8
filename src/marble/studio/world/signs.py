"""Signs: a board in one of four shapes with a word as large as the board allows."""

import io
from functools import cache
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
_AA = 4  # supersampling of boards
_FONT_PX = 64  # letters are drawn this large, then shrunk
_STRETCH = 1.4
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


def lettering(text: str, font: int, room: tuple[int, int]) -> np.ndarray:
    """The word as a mask in 0…1, as large as the room (width, height in pixels) allows.

    A word that meets one wall is stretched towards the other, by two fifths at most.
    """
    drawn = _font(font, _FONT_PX)
    left, top, right, bottom = drawn.getbbox(text)
    mask = Image.new("L", (int(right - left), int(bottom - top)))
    ImageDraw.Draw(mask).text((-left, -top), text, font=drawn, fill=255)
    fill = _STRETCH * min(room[0] / mask.width, room[1] / mask.height)
    size = min(room[0], round(mask.width * fill)), min(room[1], round(mask.height * fill))
    return np.asarray(mask.resize(size, Image.Resampling.HAMMING), dtype=np.float32) / 255


def draw_sign(background: np.ndarray, sign: Sign) -> np.ndarray:
    """The background (float32 [64, 64, 3]) with the sign on it."""
    colour, see_through = _board(sign.board, sign.color, sign.lean)
    picture = background * see_through + colour
    word = lettering(sign.text, sign.font, _ROOM[sign.board])[..., None]
    left, top, right, bottom = _FRAME[sign.board]
    x = (left + right - word.shape[1]) // 2
    y = (top + bottom - word.shape[0]) // 2 + sign.lean
    ink = _INK if sign.color in _LIGHT_BOARDS else (255, 255, 255)
    window = picture[y : y + word.shape[0], x : x + word.shape[1]]
    window += (np.array(ink, dtype=np.float32) - window) * word
    return picture


@cache
def _board(board: str, color: str, lean: int) -> tuple[np.ndarray, np.ndarray]:
    """An empty board as (premultiplied colour, 1 − α), drawn supersampled."""
    dark, base, _ = PAINT[color]
    big = Image.new("RGBA", (SIZE * _AA, SIZE * _AA))
    x0, y0, x1, y1 = (v * _AA for v in _FRAME[board])
    box = (x0, y0 + lean * _AA, x1, y1 + lean * _AA)
    _BOARD[board](ImageDraw.Draw(big), box, base, dark)
    small = np.asarray(big.convert("RGBa").reduce(_AA), dtype=np.float32)
    return small[..., :3], 1 - small[..., 3:] / 255


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
