"""A scene: everything a picture shows, as plain data. `render` draws it, `satisfies` judges it."""

from dataclasses import dataclass, replace

SIZE = 64
"""Width and height of a picture in pixels."""

Box = tuple[int, int, int, int]
"""x0, y0, x1, y1 in pixels; x1 and y1 just outside."""


@dataclass(frozen=True)
class Thing:
    """One object: its class, colour (None: natural), visible box and whether it is mirrored."""

    name: str
    color: str | None
    box: Box
    flip: bool = False

    @property
    def centre(self) -> tuple[float, float]:
        x0, y0, x1, y1 = self.box
        return (x0 + x1) / 2, (y0 + y1) / 2


@dataclass(frozen=True)
class Sign:
    """A board with a word: its kind (see `BOARDS`), paint and lettering."""

    text: str
    board: str
    color: str
    font: int
    lean: int = 0  # vertical offset of the board's centre in pixels


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn. `seed` fixes its decoration (dots, flakes, stars)."""

    things: tuple[Thing, ...] = ()
    sign: Sign | None = None
    style: str | None = None
    background: int = 0  # index into `backdrop.PALETTE`; styles bring their own
    pattern: str = "plain"
    seed: int = 0

    def with_thing(self, index: int, thing: Thing) -> "Scene":
        """The scene with one object replaced."""
        things = list(self.things)
        things[index] = thing
        return replace(self, things=tuple(things))
