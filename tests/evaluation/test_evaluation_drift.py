"""Statistics of many pictures at once against the plain sums over one picture."""

import numpy as np
import pytest

from marble.evaluation.drift import BLANK_CONTRAST, EDGE_SLOPE, NAMES, drift_statistics


def of_one(image):
    rgb = image.astype(np.float64) / 255
    luma = np.tensordot((0.299, 0.587, 0.114), rgb, axes=1)
    high, low = rgb.max(axis=0), rgb.min(axis=0)
    dy = np.abs(np.diff(luma, axis=0, append=luma[-1:]))
    dx = np.abs(np.diff(luma, axis=1, append=luma[:, -1:]))
    padded = np.pad(luma, 1, mode="edge")
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    counts = np.bincount(np.rint(luma * 255).astype(np.int64).ravel(), minlength=256)
    share = counts[counts > 0] / luma.size
    return {
        "sharpness": (around - 4 * luma).std(),
        "contrast": luma.std(),
        "saturation": np.mean((high - low) / np.maximum(high, 1e-9)),
        "entropy": -(share * np.log2(share)).sum(),
        "edges": np.mean(np.hypot(dx, dy) >= EDGE_SLOPE),
        "blank": float(luma.std() < BLANK_CONTRAST),
    }


def thumbnail(image):
    _, height, width = image.shape
    rows = np.linspace(0, height, min(16, height), endpoint=False).astype(np.int64)
    cols = np.linspace(0, width, min(16, width), endpoint=False).astype(np.int64)
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows, axis=1), cols, axis=2)
    area = np.diff(rows, append=height)[:, None] * np.diff(cols, append=width)
    return sums / (area * 255)


def distance(images, groups, i):
    others = [j for j, group in enumerate(groups) if group == groups[i] and j != i]
    thumbs = [thumbnail(image) for image in images]
    return np.mean([np.sqrt(np.mean((thumbs[i] - thumbs[j]) ** 2)) for j in others])


def pictures(kind, shape):
    """uint8 [n, 3, H, W] of ``shape`` (n, H, W)."""
    n, height, width = shape
    rng = np.random.default_rng(7)
    noise = rng.integers(0, 256, (n, 3, height, width)).astype(np.uint8)
    if kind == "faint":
        return noise // 16 + np.uint8(100)
    if kind == "grey":
        return np.repeat(noise[:, :1], 3, axis=1)
    if kind == "flat":
        noise[:] = noise[:, :, :1, :1]
        noise[0], noise[-1] = 0, 255
    return noise


@pytest.mark.parametrize("kind", ["noise", "faint", "grey", "flat"])
@pytest.mark.parametrize(
    "shape", [(40, 64, 64), (2, 512, 512), (5, 1, 1), (4, 1, 9), (6, 17, 40), (3, 300, 200)]
)
def test_every_picture_as_if_it_were_alone(kind, shape):
    """Over the bounds of chunks too: 40 pictures of 64 px are several, 512 px are one each."""
    images = pictures(kind, shape)
    groups = [i % 2 if i < 4 else "alone" for i in range(len(images))]
    found = drift_statistics(images, groups)
    assert tuple(found) == NAMES
    expected = [of_one(image) for image in images]
    for name in NAMES[:-1]:
        values = [one[name] for one in expected]
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-12, err_msg=name)
        assert found[name].dtype == np.float64
    for i in range(len(images)):
        if groups.count(groups[i]) > 1:
            assert found["diversity"][i] == pytest.approx(distance(images, groups, i), abs=1e-12)
        else:
            assert np.isnan(found["diversity"][i])


def colours(luma):
    """All with 299 r + 587 g + 114 b = luma, of 255 000."""
    found = []
    for r in range(min(255, luma // 299) + 1):
        for g in range(min(255, (luma - 299 * r) // 587) + 1):
            b, rest = divmod(luma - 299 * r - 587 * g, 114)
            if rest == 0 and b < 256:
                found.append((r, g, b))
    return found


def test_a_slope_on_the_very_threshold_is_judged_as_hypot_does():
    """Steps of 0.06 and 0.08 make a slope of 0.1, whose square may round either way."""
    right, below = colours(15_300), colours(20_400)
    pairs = [(r, b) for r in right for b in below]
    images = np.zeros((len(pairs), 3, 2, 2), np.uint8)
    for image, (r, b) in zip(images, pairs):
        image[:, 0, 1], image[:, 1, 0] = r, b
    expected = [of_one(image)["edges"] for image in images]
    assert drift_statistics(images)["edges"].tolist() == expected


def test_no_pictures():
    empty = drift_statistics(np.zeros((0, 3, 8, 8), np.uint8), [])
    assert all(values.shape == (0,) for values in empty.values())
