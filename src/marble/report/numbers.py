"""Numbers on their way to the page: thinned, rounded, and written for people."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def thin(steps: ArrayLike, values: ArrayLike, most: int) -> tuple[list[int], list[float | None]]:
    """At most `most` points of a curve: means over runs of equal length, gaps left out.

    Means rather than picks, so that noise does not decide what the curve shows.
    """
    at, curve = np.asarray(steps), np.asarray(values, dtype=np.float64)
    bins = bin_edges(len(at), most)
    return bin_steps(at, bins), compact(bin_means(curve, bins))


def bin_edges(n: int, most: int) -> NDArray[np.int64]:
    """Starts of at most `most` bins of equal length over n rows."""
    return np.arange(0, n, max(1, math.ceil(n / most)), dtype=np.int64)


def bin_steps(steps: NDArray[np.int64], bins: NDArray[np.int64]) -> list[int]:
    """The last step of each bin: the point at which its mean is known."""
    ends = np.append(bins[1:], len(steps)) - 1
    return [int(s) for s in steps[ends]] if len(steps) else []


def bin_means(values: Floats, bins: NDArray[np.int64]) -> Floats:
    """Mean of each bin over its finite values; NaN where it has none."""
    if not len(bins):
        return np.empty(0)
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), bins)
    counts = np.add.reduceat(known.astype(np.float64), bins)
    return np.divide(sums, counts, out=np.full(len(bins), np.nan), where=counts > 0)


def compact(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Numbers rounded to significant digits, None where not finite: short, valid JSON."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]


def mean(values: ArrayLike) -> float:
    """Mean of the finite values, NaN without any."""
    array = np.asarray(values, dtype=np.float64)
    array = array[np.isfinite(array)]
    return float(array.mean()) if len(array) else math.nan


def figure(value: float, like: float | None = None) -> str:
    """A number with digits that suit its size (or the size of `like`): 0.412, 21.35, 0.0012."""
    if not math.isfinite(value):
        return "–"
    size = abs(value if like is None or not math.isfinite(like) else like)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
    if 0 < size < 0.01:
        digits = min(8, 1 - math.floor(math.log10(size)))
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def signed(value: float, like: float | None = None) -> str:
    """The same with its sign: +0.120."""
    text = figure(value, like)
    return text if text[0] in "−–" else f"+{text}"


def sigma(value: float) -> str:
    """A gain in standard deviations, two digits whatever its size: +0.42 σ."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:+.2f}".replace("-", "−")
    return f"{text} σ".replace("−0.00", "0.00").replace("+0.00", "0.00")


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if math.isfinite(share) else "–"


def count(n: int) -> str:
    """Small numbers as words: five; larger ones as figures."""
    return _WORDS[n] if n < len(_WORDS) else str(n)


def duration(seconds: float) -> str:
    """2 h 05 min, 3 min 20 s, 12 s."""
    if not math.isfinite(seconds):
        return "–"
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
