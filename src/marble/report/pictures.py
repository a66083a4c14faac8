"""Pictures for the page: the most telling pairs first, until the size budget is spent."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from marble.report.folder import Evaluation, Run, Sample, read_samples, step_folders
from marble.report.numbers import compact, mean
from marble.report.verdict import Candidate

LARGEST_SIDE = 320
"""Pixels of an embedded picture's longer side."""
LOSSLESS_SIDE = 96
"""Pictures up to this size are embedded exactly; lettering in them would not survive."""
MOST_PAIRS = 200
FILM_PROMPTS, FILM_STEPS = 6, 7
COMPARED_PROMPTS = 16


class Store:
    """Embedded pictures, each once, within a budget of characters."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.images: list[str] = []
        self._by_file: dict[Path, int] = {}
        self._by_content: dict[str, int] = {}

    def add(self, *files: Path) -> list[int] | None:
        """Indices of all the files, or None (and nothing added) where they would not fit."""
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
            return None
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
    ranked = telling(run.base, chosen)
    room = store.budget - budget
    kept: list[dict[str, Any]] = []
    for pair in ranked[:MOST_PAIRS]:
        base, trained = run.base.samples[pair["id"]], chosen.evaluation.samples[pair["id"]]
        images = store.add(base.file, trained.file) if store.budget > room else None
        if images is None:
            break
        kept.append({**pair, "base": images[0], "trained": images[1]})
    return {"step": chosen.step, "pairs": kept, "left_out": len(ranked) - len(kept)}


def telling(base: Evaluation, chosen: Candidate) -> list[dict[str, Any]]:
    """All pairs, the most telling first: worst, best, each reward's largest falls and rises."""
    spreads = {g.name: g.spread for g in (*chosen.trained, *chosen.held)}
    found = []
    for i, sample in chosen.evaluation.samples.items():
        twin = base.samples.get(i)
        if twin is not None and twin.prompt == sample.prompt:
            found.append(_pair(twin, sample, spreads))
    orders = [sorted(found, key=lambda p: p["mean"]), sorted(found, key=lambda p: -p["mean"])]
    for name in spreads:
        scored = [(p["z"][name], n, p) for n, p in enumerate(found) if name in p["z"]]
        by_change = [p for _, _, p in sorted(scored)]
        orders += [by_change, by_change[::-1]]
    return _in_turn(orders)


def film(run: Run, store: Store, budget: int) -> dict[str, Any] | None:
    """The same prompts and seeds during training: rows of pictures over steps."""
    folders = step_folders(run, "samples")
    indexed = {step: {s.id: s for s in read_samples(f)} for step, f in folders.items()}
    steps = [step for step, samples in indexed.items() if samples]
    if len(steps) < 2:
        return None
    last = len(steps) - 1
    wanted = min(FILM_STEPS, len(steps))
    steps = [steps[round(i * last / (wanted - 1))] for i in range(wanted)]
    shared = [i for i in indexed[steps[0]] if all(i in indexed[s] for s in steps)]
    room = store.budget - budget
    rows = []
    for i in shared[:FILM_PROMPTS]:
        samples = [indexed[s][i] for s in steps]
        images = store.add(*(s.file for s in samples)) if store.budget > room else None
        if images is None:
            break
        rows.append({"prompt": samples[0].prompt, "source": samples[0].source, "images": images})
    return {"steps": steps, "rows": rows} if rows else None


def by_method(
    runs: Sequence[Run], chosen: Sequence[Candidate | None], store: Store, budget: int
) -> dict[str, Any] | None:
    """One row a prompt, one column a run: prompts that every run drew from the same seed.

    Rows come in the order in which the runs disagree most about the change of the mean score.
    """
    judged = [(i, run, c) for i, (run, c) in enumerate(zip(runs, chosen)) if c and run.base]
    if len(judged) < 2:
        return None
    tables = []
    for _, run, candidate in judged:
        assert run.base is not None
        tables.append({p["id"]: p for p in telling(run.base, candidate)})
    first = tables[0]
    shared = [i for i, pair in first.items() if all(_same(pair, t.get(i)) for t in tables)]

    def disagreement(i: int) -> float:
        values = [t[i]["mean"] for t in tables]
        return max(values) - min(values)

    room = store.budget - budget
    rows = []
    for i in sorted(shared, key=disagreement, reverse=True)[:COMPARED_PROMPTS]:
        base = judged[0][1].base
        assert base is not None
        files = [base.samples[i].file, *(c.evaluation.samples[i].file for _, _, c in judged)]
        images = store.add(*files) if store.budget > room else None
        if images is None:
            break
        rows.append(
            {
                "prompt": first[i]["prompt"],
                "source": first[i]["source"],
                "images": images,
                "mean": [0.0, *(t[i]["mean"] for t in tables)],
            }
        )
    left_out = len(shared) - len(rows)
    return {"runs": [i for i, _, _ in judged], "rows": rows, "left_out": left_out} if rows else None


def _pair(base: Sample, trained: Sample, spreads: dict[str, float]) -> dict[str, Any]:
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
