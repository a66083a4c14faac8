"""Pictures for the page: the most telling pairs first, until the size budget is spent."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from marble.report.folder import Picture, Run, latest_samples
from marble.report.numbers import compact, mean
from marble.report.verdict import Candidate

LARGEST_SIDE = 320
"""Pixels of an embedded picture's longer side."""
LOSSLESS_SIDE = 96
"""Pictures up to this size are embedded exactly; lettering in them would not survive."""
MOST_PAIRS = 200
FILM_PROMPTS, FILM_STEPS = 6, 7
COMPARED_PROMPTS = 16
MOST_ROLLOUTS = 24

T = TypeVar("T")


class Full(Exception):
    """The budget is spent."""


class Store:
    """Embedded pictures, each once, within a budget of characters."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.images: list[str] = []
        self._by_file: dict[Path, int] = {}
        self._by_content: dict[str, int] = {}

    def add(self, *files: Path) -> list[int] | None:
        """Indices of all the files; None, and nothing added, where one is not a whole picture.

        Raises `Full` where they would not fit.
        """
        fresh: dict[Path, str] = {}
        for file in files:
            if file not in self._by_file:
                uri = _encode(file)
                if uri is None:
                    return None
                fresh[file] = uri
        digests = {file: _digest(uri) for file, uri in fresh.items()}
        new = {digests[f]: uri for f, uri in fresh.items() if digests[f] not in self._by_content}
        cost = sum(len(uri) for uri in new.values())
        if cost > self.budget:
            raise Full
        self.budget -= cost
        for digest, uri in new.items():
            self._by_content[digest] = len(self.images)
            self.images.append(uri)
        self._by_file |= {file: self._by_content[digest] for file, digest in digests.items()}
        return [self._by_file[f] for f in files]


def pairs(run: Run, chosen: Candidate | None, store: Store, budget: int) -> dict[str, Any]:
    """Base beside trained, same prompt and seed, with the scores of both."""
    if run.base is None or chosen is None:
        return {"step": None, "pairs": [], "left_out": 0}
    before, after = run.pictures(run.base), run.pictures(chosen.evaluation)
    ranked = telling(before, after, chosen)
    kept = []
    rows = [(p, (before[p["id"]].file, after[p["id"]].file)) for p in ranked[:MOST_PAIRS]]
    for pair, (base, trained) in embedded(rows, store, budget):
        kept.append({**pair, "base": base, "trained": trained})
    return {"step": chosen.step, "pairs": kept, "left_out": len(ranked) - len(kept)}


def telling(
    before: dict[int, Picture], after: dict[int, Picture], chosen: Candidate
) -> list[dict[str, Any]]:
    """All pairs, the most telling first: worst, best, each reward's largest falls and rises."""
    spreads = {g.name: g.spread for g in (*chosen.trained, *chosen.held)}
    found = [
        _pair(before[i], picture, spreads)
        for i, picture in after.items()
        if i in before and (before[i].prompt, before[i].seed) == (picture.prompt, picture.seed)
    ]
    orders = [sorted(found, key=lambda p: p["mean"]), sorted(found, key=lambda p: -p["mean"])]
    for name in spreads:
        scored = [(p["z"][name], n, p) for n, p in enumerate(found) if name in p["z"]]
        by_change = [p for _, _, p in sorted(scored)]
        orders += [by_change, by_change[::-1]]
    return _in_turn(orders)


def film(run: Run, store: Store, budget: int) -> dict[str, Any] | None:
    """The same prompts and seeds at every evaluation: rows of pictures over steps."""
    shown = {0 if e.policy == "base" else e.step: run.pictures(e) for e in run.evals}
    steps = [step for step, pictures in shown.items() if pictures]
    if len(steps) < 3:
        return None
    wanted = min(FILM_STEPS, len(steps))
    steps = [steps[round(i * (len(steps) - 1) / (wanted - 1))] for i in range(wanted)]
    first = shown[steps[0]]
    shared = [
        i
        for i, one in first.items()
        if all(i in shown[s] and shown[s][i].prompt == one.prompt for s in steps)
    ]
    rows = [(first[i], tuple(shown[s][i].file for s in steps)) for i in _spread(first, shared)]
    found = [
        {"prompt": picture.prompt, "source": picture.source, "images": images}
        for picture, images in embedded(rows[:FILM_PROMPTS], store, budget)
    ]
    return {"steps": steps, "rows": found} if found else None


def rollouts(run: Run, store: Store, budget: int) -> dict[str, Any] | None:
    """The newest training pictures, for a run that has no pair to show yet."""
    step, pictures = latest_samples(run)
    rows = [(p, (p.file,)) for p in list(pictures.values())[:MOST_ROLLOUTS]]
    found = [
        {"prompt": picture.prompt, "source": picture.source, "image": image}
        for picture, (image,) in embedded(rows, store, budget)
    ]
    return {"step": step, "pictures": found} if found else None


def by_method(
    runs: Sequence[Run], last: Sequence[Candidate | None], store: Store, budget: int
) -> dict[str, Any] | None:
    """One row per prompt, one column per run: prompts that every run drew from the same seed.

    Rows come in the order in which the runs disagree most about the change of the mean score.
    """
    columns, indices = [], []
    for index, (run, candidate) in enumerate(zip(runs, last)):
        if run.base is not None and candidate is not None:
            before, after = run.pictures(run.base), run.pictures(candidate.evaluation)
            changes = {p["id"]: p for p in telling(before, after, candidate)}
            columns.append((before, after, changes))
            indices.append(index)
    if len(columns) < 2:
        return None
    base, _, first = columns[0]
    shared = [i for i in first if all(_same(first[i], c.get(i)) for _, _, c in columns)]

    def disagreement(i: int) -> float:
        means = [changes[i]["mean"] for _, _, changes in columns]
        return max(means) - min(means)

    shared.sort(key=disagreement, reverse=True)
    rows = [
        (i, (base[i].file, *(after[i].file for _, after, _ in columns)))
        for i in shared[:COMPARED_PROMPTS]
    ]
    found = [
        {
            "prompt": first[i]["prompt"],
            "source": first[i]["source"],
            "images": images,
            "mean": [0.0, *(changes[i]["mean"] for _, _, changes in columns)],
        }
        for i, images in embedded(rows, store, budget)
    ]
    left_out = len(shared) - len(found)
    return {"runs": indices, "rows": found, "left_out": left_out} if found else None


def embedded(
    rows: Iterable[tuple[T, tuple[Path, ...]]], store: Store, budget: int
) -> Iterator[tuple[T, list[int]]]:
    """Each thing with its pictures' indices, until this part's share of the budget is spent."""
    floor = store.budget - budget
    for thing, files in rows:
        if store.budget <= floor:
            return
        try:
            images = store.add(*files)
        except Full:
            return
        if images is not None:
            yield thing, images


def _spread(pictures: dict[int, Picture], ids: Sequence[int]) -> list[int]:
    """Ids in an order that takes the sources in turn."""
    by_source: dict[str, list[int]] = {}
    for i in ids:
        by_source.setdefault(pictures[i].source, []).append(i)
    longest = max((len(group) for group in by_source.values()), default=0)
    return [g[n] for n in range(longest) for g in by_source.values() if n < len(g)]


def _pair(base: Picture, trained: Picture, spreads: dict[str, float]) -> dict[str, Any]:
    scores = {
        name: compact([base.scores[name], trained.scores[name]])
        for name in spreads
        if name in base.scores and name in trained.scores
    }
    z = {
        name: round((trained.scores[name] - base.scores[name]) / spreads[name], 3)
        for name in scores
        if spreads[name] > 0
    }
    centre = mean(list(z.values()))
    return {
        "id": trained.id,
        "prompt": trained.prompt,
        "source": trained.source,
        "seed": trained.seed,
        "scores": scores,
        "z": z,
        "mean": round(centre, 3) if math.isfinite(centre) else 0.0,
    }


def _same(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    return other is not None and all(one[k] == other[k] for k in ("prompt", "seed"))


def _in_turn(orders: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Round robin over several orders of the same things, each thing once."""
    orders = list(orders)
    seen: dict[int, dict[str, Any]] = {}
    for rank in range(max((len(order) for order in orders), default=0)):
        for order in orders:
            if rank < len(order):
                seen.setdefault(order[rank]["id"], order[rank])
    return list(seen.values())


def _encode(file: Path) -> str | None:
    """A picture as a WebP data URI; None for a file that is not a whole picture (yet)."""
    try:
        with Image.open(file) as image:
            picture = image.convert("RGB")
    except OSError:
        return None
    small = max(picture.size) <= LOSSLESS_SIDE
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", lossless=small, quality=80, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _digest(uri: str) -> str:
    return hashlib.sha1(uri.encode(), usedforsecurity=False).hexdigest()
