"""Pictures: colours hold, objects stand out, generation is a pure function of seed and index."""

import numpy as np
import pytest
from _world_draws import draws

from marble.errors import MarbleError
from marble.studio.world import (
    CLASSES,
    COLORS,
    DEGRADATIONS,
    STYLES,
    Scene,
    Thing,
    degrade,
    generate,
    render,
)
from marble.studio.world.backdrop import backdrop
from marble.studio.world.compose import fit, on_background
from marble.studio.world.language import COLORABLE
from marble.studio.world.signs import _ROOM, FONTS, lettering
from marble.studio.world.sprites import PAINT, tinted


def test_pictures_are_rgb_bytes() -> None:
    for _, scene, _ in draws(50):
        picture = render(scene)
        assert picture.shape == (64, 64, 3) and picture.dtype == np.uint8
        assert np.array_equal(picture, render(scene))


@pytest.mark.parametrize("name", COLORABLE)
def test_a_painted_object_is_nearest_to_its_own_colour(name: str) -> None:
    for color in COLORS:
        rgba = np.asarray(tinted(name, color), dtype=np.float32)
        typical = np.median(rgba[rgba[..., 3] > 128][:, :3], axis=0)
        nearest = min(PAINT, key=lambda c: np.linalg.norm(typical - np.array(PAINT[c][1])))
        assert nearest == color


@pytest.mark.parametrize("name", CLASSES)
def test_objects_stand_out_from_their_background(name: str) -> None:
    rng = np.random.default_rng(0)
    for color in (None, *(COLORS if name in COLORABLE else ())):
        scene = on_background(Scene(things=(Thing(name, color, fit(name, 36, (32, 32))),)), rng)
        difference = np.abs(render(scene).astype(float) - backdrop(scene)).max(axis=-1)
        x0, y0, x1, y1 = scene.things[0].box
        inside = difference[y0:y1, x0:x1]
        assert (inside > 40).mean() > 0.2, (name, color)
        difference[y0 - 3 : y1 + 3, x0 - 3 : x1 + 3] = 0
        assert difference.max() <= 1, "nothing is drawn outside the box and its shadow"


def test_styles_look_different() -> None:
    things = (Thing("dog", None, fit("dog", 36, (32, 32))),)
    pictures = [render(Scene(things=things, style=s, seed=4)).astype(float) for s in STYLES]
    for i, a in enumerate(pictures):
        for b in pictures[:i]:
            assert np.abs(a - b).mean() > 8


def test_a_word_is_drawn_large() -> None:
    widths = {len(text): [] for text in ("ABC", "ABCD", "ABCDE", "ABCDEF")}
    for board, (room, _) in _ROOM.items():
        for font in range(len(FONTS)):
            for n in widths:
                mask = lettering("ABCDEF"[:n], font, _ROOM[board])
                assert mask.max() > 0.9 and mask.shape[0] >= 12, (board, font, n)
                widths[n].append(mask.shape[1] / room)
    assert min(widths[6]) > 0.95, "six letters take the whole width"
    assert min(widths[3]) > 0.5


def test_generation_does_not_depend_on_workers() -> None:
    one = generate(1100, seed=7, workers=1, sloppy=0.2)
    two = generate(1100, seed=7, workers=2, sloppy=0.2)
    for key, value in one.items():
        same = value == two[key] if isinstance(value, list) else np.array_equal(value, two[key])
        assert same, key
    other = generate(8, seed=8)
    assert not np.array_equal(one["images"][:8], other["images"])
    # a longer run begins with the shorter one
    assert np.array_equal(generate(8, seed=7, sloppy=0.2)["images"], one["images"][:8])


def test_generated_truth() -> None:
    data = generate(600, seed=1, sources={"geneval": 1.0})
    assert not data["broken"].any()
    for i, meta in enumerate(data["metadata"]):
        labels = data["labels"][i][data["labels"][i] >= 0]
        wanted = [e["class"] for e in meta["include"] for _ in range(e["count"])]
        assert [CLASSES[j] for j in labels] == wanted
        colors = [e.get("color") for e in meta["include"] for _ in range(e["count"])]
        assert [COLORS[c] if c >= 0 else None for c in data["colors"][i][: len(wanted)]] == colors
        boxes = data["boxes"][i]
        assert (boxes[: len(wanted), 2:] > boxes[: len(wanted), :2]).all()
        assert (boxes[len(wanted) :] == 0).all()
    signs = generate(50, seed=1, sources={"ocr": 1.0})
    assert signs["texts"] == [meta["text"] for meta in signs["metadata"]]


def test_sloppy_captions() -> None:
    data = generate(600, seed=2, sloppy=0.3, sources={"ocr": 1.0})
    wrong = [text != meta["text"] for text, meta in zip(data["texts"], data["metadata"])]
    assert 0.2 < data["broken"].mean() < 0.4
    assert not (np.array(wrong) & ~data["broken"]).any()
    # a wrong board colour leaves the word right, any other break does not
    assert np.mean(wrong) > 0.6 * data["broken"].mean()


def test_unknown_source_is_refused() -> None:
    with pytest.raises(MarbleError, match="poems"):
        generate(4, seed=0, sources={"poems": 1.0})


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_degraded_pictures_differ_visibly(kind: str) -> None:
    for _, scene, rng in draws(4, seed=6):
        picture = render(scene)
        worse = degrade(picture, rng, kind)
        assert worse.shape == picture.shape and worse.dtype == np.uint8
        assert np.abs(worse.astype(float) - picture).mean() > 1.5


def test_unknown_degradation_is_refused() -> None:
    with pytest.raises(MarbleError, match="blur"):
        degrade(np.zeros((64, 64, 3), np.uint8), np.random.default_rng(0), "rust")
