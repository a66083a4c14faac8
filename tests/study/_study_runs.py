"""Run folders made by hand: what a study reads of them, with numbers that can be checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from PIL import Image

from marble.study import Cell, Study

REWARDS = ("a", "b")
BASE = {
    "a": [0.0, 2.0] * 5,  # std 1
    "b": [0.0, 4.0] * 4 + [None, None],  # std 2, applies to eight
    "h": [1.0] * 10,
}


def moved(a=0.0, b=0.0, h=0.0):
    shift = {"a": a, "b": b, "h": h}
    return {n: [None if v is None else v + shift[n] for v in values] for n, values in BASE.items()}


def make_run(
    folder: Path,
    base: Mapping[str, Sequence[float | None]],
    trained: Mapping[str, Sequence[float | None]],
    *,
    rewards: Sequence[str] = REWARDS,
    harmony: Sequence[Mapping[str, float]] = (),
    drift: tuple[float, float] = (0.5, 0.5),
    status: str = "finished",
    seconds: float = 60.0,
) -> Path:
    """`base` and `trained`: score → one number a picture (None: does not apply)."""
    folder.mkdir(parents=True)
    train = [{"name": name} for name in rewards]
    config = {"balance": {"method": "marble"}, "rewards": {"train": train}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(json.dumps({"status": status, "seconds": seconds}))
    rows = [{"step": i + 1, **row} for i, row in enumerate(harmony)]
    rows.append({"step": len(rows) + 1, "coefficient/a": 0.5, "coefficient/b": 1.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = []
    for policy, step, scores, value in (
        ("base", 0, base, drift[0]),
        ("trained", 9, trained, drift[1]),
    ):
        where = folder / f"evals/step-{step:06d}"
        _write_index(where, scores, value)
        means = {n: {"mean": _mean(v), "n": len(v)} for n, v in scores.items()}
        lines.append(
            {
                "step": step,
                "policy": policy,
                "folder": f"evals/step-{step:06d}",
                "rewards": {n: e for n, e in means.items() if n in rewards},
                "heldout": {n: e for n, e in means.items() if n not in rewards},
            }
        )
    (folder / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _write_index(where: Path, scores: Mapping[str, Sequence[float | None]], value: float) -> None:
    where.mkdir(parents=True)
    count = len(next(iter(scores.values())))
    samples = []
    for i in range(count):
        Image.new("RGB", (2, 2)).save(where / f"{i:03d}.png")
        samples.append(
            {
                "id": i,
                "file": f"{i:03d}.png",
                "prompt": f"p{i}",
                "source": "general",
                "seed": i,
                "scores": {name: values[i] for name, values in scores.items()},
                "drift": {"saturation": value + 0.01 * i, "blank": 0.0},
            }
        )
    (where / "index.json").write_text(json.dumps({"samples": samples}))


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known)


def make_study(tmp_path, gains, seeds=(0, 1), settings=("",)) -> Study:
    """gains: cell → gain of reward a for each seed."""
    cells = []
    for setting in settings:
        for name, values in gains.items():
            for seed, value in zip(seeds, values):
                cells.append(Cell(name, seed, (), setting))
                if value is not None:
                    make_run(tmp_path / cells[-1].folder, BASE, moved(a=value, b=2.0))
    return Study("mine", "A study.", "studio", cells)
