"""Backgrounds: soft plain colours that contrast with what stands on them, and eight styles.

All return float32 [64, 64, 3] in 0…255. What a style puts *over* the objects (flakes, rain,
toning) is in `overlay`.
"""

from functools import cache, lru_cache

import numpy as np
from PIL import Image, ImageDraw

from marble.studio.world.scene import SIZE, Scene
from marble.studio.world.sprites import RGB

# (colour, colour words it is close to: nothing painted so stands on it)
_SOFT: tuple[tuple[RGB, tuple[str, ...]], ...] = (
    ((190, 226, 247), ("blue",)),  # sky
    ((203, 240, 218), ("green",)),  # mint
    ((255, 243, 212), ("yellow", "white")),  # cream
    ((255, 219, 199), ("orange", "pink")),  # peach
    ((226, 215, 247), ("purple",)),  # lilac
    ((251, 213, 224), ("pink",)),  # rose
    ((232, 220, 199), ("white",)),  # sand
    ((234, 238, 242), ("white",)),  # pale grey
    ((122, 199, 193), ("green", "blue")),  # teal
    ((246, 160, 142), ("red", "orange", "pink")),  # coral
    ((255, 217, 122), ("yellow", "orange")),  # honey
    ((126, 180, 234), ("blue",)),  # cornflower
    ((146, 206, 146), ("green",)),  # leaf
    ((172, 152, 222), ("purple", "pink")),  # violet
    ((92, 108, 134), ("black",)),  # slate
)
PALETTE: tuple[RGB, ...] = tuple(color for color, _ in _SOFT)
PATTERNS: tuple[str, ...] = ("plain", "spot", "ground")
_CONTRAST = 120.0  # least distance in RGB between an object's rim and what is behind it
_AA = 4  # supersampling of round shapes


@lru_cache(maxsize=512)
def contrasts(rim: RGB, color: str | None) -> np.ndarray:
    """Distance in RGB from `rim` to every colour of `PALETTE`, 0 where `color` is taken."""
    distance = np.linalg.norm(np.array(PALETTE) - np.array(rim), axis=-1)
    return np.where([color in close for _, close in _SOFT], 0.0, distance)


def choose_background(rims: list[tuple[RGB, str | None]], rng: np.random.Generator) -> int:
    """A background that contrasts with every (colour at the rim, colour word) standing on it."""
    worst = np.min([contrasts(*rim) for rim in rims], axis=0)
    allowed = np.flatnonzero(worst >= _CONTRAST)
    return int(rng.choice(allowed)) if len(allowed) else int(worst.argmax())


def _vertical(*stops: tuple[float, RGB]) -> np.ndarray:
    at, colors = zip(*stops)
    y = (np.arange(SIZE) + 0.5) / SIZE
    column = np.stack([np.interp(y, at, [c[i] for c in colors]) for i in range(3)], axis=-1)
    return np.repeat(column[:, None], SIZE, axis=1).astype(np.float32)


def _blend(base: np.ndarray, mask: np.ndarray, color: RGB, opacity: float = 1.0) -> np.ndarray:
    a = mask[..., None] * opacity
    return (base * (1 - a) + np.array(color, dtype=np.float32) * a).astype(np.float32)


def _dot(picture: np.ndarray, x: float, y: float, radius: float, color: RGB) -> None:
    """Draw a small disc into the picture, in place: only its own window is touched."""
    x0, x1 = max(0, int(x - radius - 1)), min(SIZE, int(x + radius + 2))
    y0, y1 = max(0, int(y - radius - 1)), min(SIZE, int(y + radius + 2))
    xs, ys = np.arange(x0, x1) + 0.5, np.arange(y0, y1)[:, None] + 0.5
    cover = np.clip(radius + 0.5 - np.hypot(xs - x, ys - y), 0, 1)[..., None]
    window = picture[y0:y1, x0:x1]
    window += (np.array(color, dtype=np.float32) - window) * cover


@lru_cache(maxsize=4096)
def _ellipse(x0: float, y0: float, x1: float, y1: float) -> np.ndarray:
    """An anti-aliased ellipse as a mask in 0…1."""
    big = Image.new("L", (SIZE * _AA, SIZE * _AA))
    ImageDraw.Draw(big).ellipse([v * _AA for v in (x0, y0, x1, y1)], fill=255)
    return np.asarray(big.reduce(_AA), dtype=np.float32) / 255


@cache
def _plain(background: int, pattern: str) -> np.ndarray:
    color = np.array(PALETTE[background], dtype=np.float32)
    light = tuple(int(v) for v in color + (255 - color) * 0.18)
    dark = tuple(int(v) for v in color * 0.95)
    base = _vertical((0.0, light), (1.0, dark))  # type: ignore[arg-type]
    if pattern == "spot":
        base = _blend(base, _ellipse(4, 4, 60, 60), (255, 255, 255), 0.22)
    if pattern == "ground":
        base = _blend(base, _ellipse(-30, 46, 94, 110), tuple(int(v) for v in color * 0.86))  # type: ignore[arg-type]
    return base


def backdrop(scene: Scene) -> np.ndarray:
    """What is behind the objects of a scene. The array is shared: copy before writing to it."""
    if scene.style is None:
        return _plain(scene.background, scene.pattern)
    rng = np.random.default_rng(scene.seed)
    return _STYLES[scene.style](rng)


def _cheerful(rng: np.random.Generator) -> np.ndarray:
    warm = [((255, 236, 140), (255, 202, 84)), ((255, 224, 150), (255, 176, 120))]
    top, bottom = warm[int(rng.integers(2))]
    base = _vertical((0.0, top), (1.0, bottom))
    confetti = [(240, 72, 96), (64, 168, 240), (90, 200, 110), (255, 255, 255), (170, 96, 220)]
    for i in range(16):
        # one dot a cell of a 4×4 grid, so that they are spread evenly
        x, y = np.array([i % 4, i // 4]) * 16 + rng.integers(2, 13, size=2)
        _dot(base, x, y, (1.5, 2.1)[int(rng.integers(2))], confetti[int(rng.integers(5))])
    return base


def _minimal(rng: np.random.Generator) -> np.ndarray:
    tones = [(240, 240, 243), (244, 241, 237), (238, 243, 243)]
    return _vertical((0.0, (250, 250, 250)), (1.0, tones[int(rng.integers(3))]))


def _vintage(rng: np.random.Generator) -> np.ndarray:
    return _vertical((0.0, (255, 246, 226)), (1.0, (246, 228, 196)))


def _pastel(rng: np.random.Generator) -> np.ndarray:
    trios = [
        ((255, 214, 232), (226, 218, 255), (206, 236, 250)),
        ((206, 244, 228), (222, 232, 255), (250, 216, 240)),
    ]
    a, b, c = trios[int(rng.integers(2))]
    base = _vertical((0.0, a), (0.5, b), (1.0, c))
    return base if rng.random() < 0.5 else np.ascontiguousarray(base.transpose(1, 0, 2))


def _night(rng: np.random.Generator) -> np.ndarray:
    base = _vertical((0.0, (16, 22, 62)), (1.0, (52, 66, 128)))
    for x, y in rng.integers(1, SIZE - 2, size=(12, 2)):
        _dot(base, x + 0.5, y + 0.5, (0.5, 0.9)[int(rng.integers(2))], (255, 250, 220))
    x = 46 if rng.random() < 0.5 else 4
    moon = _ellipse(x, 3, x + 14, 17) * (1 - _ellipse(x + 4, 1, x + 17, 14))
    return _blend(base, moon, (255, 240, 170))


def _sunset(rng: np.random.Generator) -> np.ndarray:
    base = _vertical((0.0, (112, 72, 160)), (0.4, (236, 106, 132)), (0.75, (255, 180, 96)))
    x = float(rng.integers(14, 37))
    base = _blend(base, _ellipse(x, 38, x + 26, 64), (255, 240, 168))
    return _blend(base, _ellipse(-40, 53, 104, 120), (122, 62, 110))


def _snow(rng: np.random.Generator) -> np.ndarray:
    base = _vertical((0.0, (150, 190, 224)), (1.0, (200, 222, 240)))
    shift = int(rng.integers(-20, 21))
    return _blend(base, _ellipse(-40 + shift, 46, 104 + shift, 120), (250, 252, 255))


def _rain(rng: np.random.Generator) -> np.ndarray:
    base = _vertical((0.0, (104, 120, 142)), (1.0, (158, 172, 188)))
    x = int(rng.integers(0, 30))
    for dx, dy, r in ((4, 4, 7), (14, 1, 9), (25, 4, 7)):
        _dot(base, x + dx, dy, r, (208, 216, 226))
    return base


_STYLES = {
    "cheerful": _cheerful,
    "minimal": _minimal,
    "vintage": _vintage,
    "pastel": _pastel,
    "night": _night,
    "sunset": _sunset,
    "snow": _snow,
    "rain": _rain,
}


def overlay(picture: np.ndarray, scene: Scene) -> np.ndarray:
    """What a style puts over the finished picture."""
    rng = np.random.default_rng([scene.seed, 1])
    if scene.style == "snow":
        for i in range(20):
            x, y = np.array([i % 5 * 13, i // 5 * 16]) + rng.integers(1, 13, size=2)
            _dot(picture, x, y, (0.9, 1.4)[int(rng.integers(2))], (255, 255, 255))
    elif scene.style == "rain":
        picture = _blend(picture, _streaks(int(rng.integers(16))), (214, 230, 246), 0.75)
    elif scene.style == "vintage":
        grey = picture @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
        sepia = grey[..., None] / 255 * np.array([255, 232, 186], dtype=np.float32)
        picture = (0.25 * picture + 0.75 * sepia) * _vignette()
    elif scene.style == "pastel":
        picture = picture + (255 - picture) * 0.22
    return picture


@cache
def _streaks(variant: int) -> np.ndarray:
    rng = np.random.default_rng(variant)
    big = Image.new("L", (SIZE * _AA, SIZE * _AA))
    draw = ImageDraw.Draw(big)
    for i in range(20):
        x, y = (np.array([i % 5 * 13, i // 5 * 16]) + rng.integers(0, 12, size=2)) * _AA
        draw.line([x, y, x - 2 * _AA, y + 7 * _AA], fill=255, width=_AA)
    return np.asarray(big.reduce(_AA), dtype=np.float32) / 255


@cache
def _vignette() -> np.ndarray:
    axis = (np.arange(SIZE) + 0.5) / SIZE * 2 - 1
    radius2 = axis[:, None] ** 2 + axis[None] ** 2
    return (1 - 0.22 * np.clip(radius2 - 0.5, 0, None))[..., None].astype(np.float32)
