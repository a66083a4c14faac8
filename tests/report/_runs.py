"""Synthetic run folders: the files `marble train` writes, with curves and pictures that look real.

Nothing here trains. Each folder follows the run-folder contract exactly, so a page built from it
meets the same keys, gaps and sizes as one built from a real run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from marble.evaluation.drift import drift_statistics

REWARDS = ("ocr", "geneval", "clip", "quality", "aesthetic")
HELDOUT = ("preference", "fidelity")
SOURCES = ("general", "ocr", "geneval")
APPLIES = {"ocr": {"ocr"}, "geneval": {"geneval"}}
"""Rewards that apply to some sources only; every other reward applies to all."""

_SHAPES = ("circle", "square", "triangle", "star")
_COLOURS = {
    "red": (206, 62, 54),
    "blue": (52, 101, 190),
    "green": (58, 146, 84),
    "gold": (222, 168, 44),
    "violet": (126, 78, 170),
    "teal": (38, 148, 152),
}
_WORDS = ("HELLO", "OPEN", "TEA", "MARBLE", "NORTH", "SALE")


@dataclass
class Spec:
    """What the synthetic run should look like; the defaults are a healthy five-reward run."""

    rewards: tuple[str, ...] = REWARDS
    heldout: tuple[str, ...] = HELDOUT
    method: str = "marble"
    steps: int = 300
    logged: int | None = None
    """Steps actually in metrics.jsonl; None means all."""
    eval_every: int = 100
    prompts: int = 36
    size: int = 96
    gain: float = 0.8
    """Final gain of the rewards in units of their spread."""
    cheat: bool = False
    """Pictures turn gaudy and alike while the first reward climbs and the held-out ones fall."""
    status: str | None = "finished"
    samples: bool = True
    advantages: bool = True
    seed: int = 0
    extra_prompts: list[tuple[str, str]] = field(default_factory=list)
    """(prompt, source) pairs put before the generated ones."""


def make_run(folder: Path, spec: Spec | None = None) -> Path:
    """Write one run folder and return it."""
    spec = spec or Spec()
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(spec.seed)
    _write_config(folder, spec)
    last = spec.steps if spec.logged is None else spec.logged
    _write_metrics(folder, spec, last, rng)
    prompts = _prompts(spec)
    evals = []
    for step in range(0, last + 1, spec.eval_every) if last else []:
        evals.append(_write_eval(folder, spec, step, prompts))
        if spec.samples:
            _write_pictures(folder / f"samples/step-{step:06d}", spec, step, prompts[:4])
        if step:
            (folder / f"checkpoints/step-{step:06d}/lora").mkdir(parents=True, exist_ok=True)
    (folder / "evals.jsonl").write_text("".join(json.dumps(e) + "\n" for e in evals))
    if spec.advantages:
        for step in range(10, last + 1, max(10, spec.steps // 6)):
            _write_advantages(folder, spec, step, rng)
    if spec.status:
        state = {"status": spec.status, "step": last, "steps": spec.steps}
        state |= {"started": "2026-05-04T09:12:00+00:00", "seconds": 3.1 * last}
        (folder / "run.json").write_text(json.dumps(state))
    return folder


def progress(spec: Spec, step: int, k: int) -> float:
    """Share of reward k's final gain reached at a step: saturating, at its own pace."""
    pace = spec.steps / (2.5 + 0.7 * (k % 5))
    return (1 - math.exp(-step / pace)) / (1 - math.exp(-spec.steps / pace))


def _base_and_spread(name: str) -> tuple[float, float]:
    known = {"ocr": (0.42, 0.28), "geneval": (0.51, 0.3), "clip": (0.268, 0.03)}
    known |= {"quality": (-1.9, 0.8), "aesthetic": (5.3, 0.45), "preference": (21.1, 0.7)}
    return known.get(name, (0.5, 0.2))


def _gain(spec: Spec, name: str, k: int, step: int) -> float:
    """The reward's gain at a step in units of its spread."""
    if spec.cheat:
        return (2.2 if k == 0 else -0.7) * progress(spec, step, k)
    own = spec.gain * (0.55 + 0.12 * ((k * 3 + spec.seed) % 5))
    return own * progress(spec, step, k)


def _write_config(folder: Path, spec: Spec) -> None:
    lines = [
        "model: {family: studio, path: studio}",
        "data: {sources: [general, ocr, geneval]}",
        "rewards:",
        "  train:",
        *(f"  - {{name: {name}}}" for name in spec.rewards),
        "  heldout:" + ("" if spec.heldout else " []"),
        *(f"  - {{name: {name}}}" for name in spec.heldout),
        f"balance: {{method: {spec.method}, n: 10, rho: 0.7}}",
        f"train: {{steps: {spec.steps}, seed: {spec.seed}}}",
    ]
    (folder / "config.yaml").write_text("\n".join(lines) + "\n")
    (folder / "environment.json").write_text('{"torch": "2.13.0", "device": "cpu"}')


def _write_metrics(folder: Path, spec: Spec, last: int, rng: np.random.Generator) -> None:
    k = len(spec.rewards)
    noise = rng.normal(size=(last + 1, k)) * 0.12
    alpha = np.full(k, 1 / k)
    target = rng.dirichlet(np.full(k, 6.0))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, last + 1):
            row: dict[str, float | int | None] = {"step": step, "epoch": step - 1}
            refresh = step % 10 == 1
            if refresh:
                target = 0.7 * target + 0.3 * rng.dirichlet(np.full(k, 6.0))
                alpha = 0.7 * alpha + 0.3 * target
            for j, name in enumerate(spec.rewards):
                base, spread = _base_and_spread(name)
                value = base + spread * (_gain(spec, name, j, step) + noise[step, j])
                row[f"reward/{name}/mean"] = round(value, 5)
                row[f"reward/{name}/std"] = round(spread, 5)
                row[f"reward/{name}/applicable"] = 96 if name in APPLIES else 288
                row[f"reward/{name}/informative"] = 80 if name in APPLIES else 280
                row[f"advantage/{name}/std"] = 0.97
                row[f"advantage/{name}/clipped"] = 0
                row[f"alpha/{name}"] = round(float(alpha[j]), 5)
                row[f"alpha_raw/{name}"] = round(float(target[j]), 5)
                if spec.method == "progress" and step > 1:
                    row[f"progress/{name}"] = round(_gain(spec, name, j, step), 4)
                norm = 0.02 * (j + 1) * math.exp(rng.normal() * 0.15)
                row[f"grad_norm/{name}"] = round(norm, 6) if refresh else None
            if refresh:
                row |= _harmony(spec, k, step, rng)
            row |= _vitals(spec, step, rng, refresh)
            if spec.method == "progress" and step > 1:
                row["time/paired"] = 0.5
            file.write(json.dumps(row) + "\n")


def _harmony(spec: Spec, k: int, step: int, rng: np.random.Generator) -> dict[str, float | None]:
    row: dict[str, float | None] = {"qp/gap": 1e-12}
    axis = np.linspace(-1, 1, k)
    for a in range(k):
        for b in range(a + 1, k):
            cos = 0.25 - 0.35 * abs(axis[a] - axis[b]) + 0.06 * rng.normal() + 0.1 * step / 1000
            row[f"cos/{spec.rewards[a]}|{spec.rewards[b]}"] = round(float(cos), 4)
    own = spec.method == "marble"
    middle = {"harmony": 0.33 if own else -0.08, "harmony_heldout": 0.14 if own else -0.1}
    middle |= {"harmony_applied": 0.18 if own else -0.06, "harmony_sum": -0.12}
    for kind, lowest in middle.items():
        low = lowest + 0.05 * rng.normal()
        row[f"{kind}/min"] = round(low, 4)
        row[f"{kind}/mean"] = round(low + (0.06 if lowest > 0.2 else 0.4), 4)
        row[f"{kind}/var"] = round(0.006 if lowest > 0.2 else 0.12 + 0.02 * rng.random(), 5)
    return row


def _vitals(
    spec: Spec, step: int, rng: np.random.Generator, refresh: bool
) -> dict[str, float | None]:
    drift = step / spec.steps * (6 if spec.cheat else 1)
    row: dict[str, float | None] = {
        "kl": round(0.004 * drift + 0.0004 * rng.random(), 6),
        "old_deviation": round(0.001 + 0.0006 * rng.random(), 6),
        "loss": round(1.0 + 0.05 * rng.normal(), 5),
        "lr": 3e-4,
        "time/rollout": round(1.5 + 0.1 * rng.random(), 4),
        "time/reward": round(0.4 + 0.05 * rng.random(), 4),
        "time/train": round(0.9 + 0.05 * rng.random(), 4),
        "time/refresh": round(0.7 + 0.05 * rng.random(), 4) if refresh else None,
        "time/eval": 9.0 if step % spec.eval_every == 0 else None,
        "images_per_s": 96.0,
        "memory_gb": 1.2,
    }
    shift = drift * (0.4 if spec.cheat else 0.02)
    for name, base in {
        "sharpness": 0.17,
        "contrast": 0.13,
        "saturation": 0.25,
        "entropy": 5.3,
    }.items():
        row[f"drift/{name}"] = round(base * (1 + shift) + base * 0.02 * rng.normal(), 5)
    row |= {"drift/edges": 0.071, "drift/blank": 0.0}
    thin = 1 - 0.75 * step / spec.steps if spec.cheat else 1 - 0.1 * step / spec.steps
    row["drift/diversity"] = round(0.21 * thin + 0.004 * rng.normal(), 5)
    return row


def _prompts(spec: Spec) -> list[tuple[str, str]]:
    made = list(spec.extra_prompts)
    colours, i = list(_COLOURS), 0
    while len(made) < spec.prompts:
        colour, shape = colours[i % len(colours)], _SHAPES[i % len(_SHAPES)]
        source = SOURCES[i % len(SOURCES)]
        text = {
            "general": f"a {colour} {shape} in soft evening light",
            "ocr": f'a {colour} {shape} with the word "{_WORDS[i % len(_WORDS)]}"',
            "geneval": f"{2 + i % 3} {colour} {shape}s",
        }[source]
        made.append((text, source))
        i += 1
    return made


def _write_eval(folder: Path, spec: Spec, step: int, prompts: list[tuple[str, str]]) -> dict:
    name = f"evals/step-{step:06d}"
    samples = _write_pictures(folder / name, spec, step, prompts)
    entry: dict = {"step": step, "policy": "trained" if step else "base", "folder": name}

    def summary(reward: str) -> dict[str, float | int]:
        scores = np.array([s["scores"][reward] for s in samples if s["scores"][reward] is not None])
        half = 1.96 * scores.std() / math.sqrt(len(scores))
        mean = float(scores.mean())
        return {"mean": mean, "lo": mean - half, "hi": mean + half, "n": len(scores)}

    entry["rewards"] = {r: summary(r) for r in spec.rewards}
    entry["heldout"] = {r: summary(r) for r in spec.heldout}
    entry["by_source"] = {
        source: {
            r: float(np.mean(values))
            for r in spec.rewards
            if (
                values := [
                    s["scores"][r]
                    for s in samples
                    if s["source"] == source and s["scores"][r] is not None
                ]
            )
        }
        for source in sorted({s["source"] for s in samples})
    }
    return entry


def _write_pictures(
    folder: Path, spec: Spec, step: int, prompts: list[tuple[str, str]]
) -> list[dict]:
    """PNGs and index.json; the same seeds at every step, so that pictures pair up."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [
        draw_picture(text, i, step / spec.steps, spec) for i, (text, _) in enumerate(prompts)
    ]
    stats = drift_statistics(np.stack([np.asarray(p).transpose(2, 0, 1) for p in pictures]))
    samples = []
    for i, (text, source) in enumerate(prompts):
        pictures[i].save(folder / f"{i:03d}.png", compress_level=1)
        scores = {}
        for k, name in enumerate((*spec.rewards, *spec.heldout)):
            luck = np.random.default_rng([spec.seed, 7, i, k])
            applies = name not in APPLIES or source in APPLIES[name]
            base, spread = _base_and_spread(name)
            gain = _gain(spec, name, k, step) * (1 + 0.9 * luck.normal())
            value = base + spread * (luck.normal() + gain)
            scores[name] = round(float(value), 5) if applies else None
        samples.append(
            {
                "id": i,
                "file": f"{i:03d}.png",
                "prompt": text,
                "source": source,
                "seed": 1000 + i,
                "scores": scores,
                "drift": {n: round(float(v[i]), 5) for n, v in stats.items() if np.isfinite(v[i])},
            }
        )
    names = {"rewards": list(spec.rewards), "heldout": list(spec.heldout)}
    (folder / "index.json").write_text(json.dumps({"step": step, **names, "samples": samples}))
    return samples


def draw_picture(prompt: str, i: int, done: float, spec: Spec) -> Image.Image:
    """A coloured shape on a soft ground that gets tidier (or, cheating, gaudier) with training."""
    luck = np.random.default_rng([spec.seed, 11, i])
    size, side = spec.size, spec.size / 3.2
    colour = next((rgb for word, rgb in _COLOURS.items() if word in prompt), (120, 120, 120))
    ground = np.array(luck.integers(170, 240, 3), dtype=float)
    if spec.cheat:
        ground = ground * (1 - done) + np.array([255.0, 0.0, 210.0]) * done
    ramp = np.linspace(-18, 18, size)[:, None, None] * np.ones((1, size, 1))
    canvas = np.clip(ground + ramp + luck.normal(0, 7, (size, size, 1)), 0, 255).astype(np.uint8)
    image = Image.fromarray(canvas)
    pen = ImageDraw.Draw(image)
    tidy = 1 - 0.8 * done
    for n in range(int(prompt[0]) if prompt[:1].isdigit() else 1):
        x, y = np.array([0.32 + 0.36 * (n % 2), 0.35 + 0.34 * (n // 2)]) * size
        if not prompt[:1].isdigit():
            x = y = size / 2
        x, y = (x, y) + luck.normal(0, 5, 2) * tidy
        _draw_shape(pen, prompt, (float(x), float(y)), side * (0.8 if n else 1), colour)
    if '"' in prompt:
        word = prompt.split('"')[1]
        shown = word if done > 0.4 or i % 2 else word[:-1] + "#"
        pen.text((size * 0.2, size * 0.8), shown, fill=(30, 30, 40), font_size=size / 7)
    return image


def _draw_shape(
    pen: ImageDraw.ImageDraw, prompt: str, at: tuple[float, float], r: float, fill: tuple[int, ...]
) -> None:
    x, y = at
    r = r * 0.62
    if "square" in prompt:
        pen.rectangle((x - r, y - r, x + r, y + r), fill=fill)
    elif "triangle" in prompt:
        pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=fill)
    elif "star" in prompt:
        turns = [math.pi * i / 5 - math.pi / 2 for i in range(10)]
        radii = [r * (1.1 if i % 2 == 0 else 0.45) for i in range(10)]
        pen.polygon(
            [(x + q * math.cos(a), y + q * math.sin(a)) for a, q in zip(turns, radii)], fill=fill
        )
    else:
        pen.ellipse((x - r, y - r, x + r, y + r), fill=fill)


def _write_advantages(folder: Path, spec: Spec, step: int, rng: np.random.Generator) -> None:
    samples = [
        {"group": g, "source": SOURCES[g % 3], "prompt": _prompts(spec)[g][0]}
        for g in range(min(12, spec.prompts))
        for _ in range(6)
    ]
    rows: list[list[float | None]] = []
    for name in spec.rewards:
        values = np.clip(rng.normal(size=len(samples)) * 1.1, -5, 5)
        rows.append(
            [
                round(float(v), 4) if name not in APPLIES or s["source"] in APPLIES[name] else None
                for v, s in zip(values, samples)
            ]
        )
    (folder / "advantages").mkdir(exist_ok=True)
    data = {"step": step, "rewards": list(spec.rewards), "samples": samples, "advantage": rows}
    (folder / f"advantages/step-{step:06d}.json").write_text(json.dumps(data))


def add_front(folder: Path, names: tuple[str, ...] = REWARDS, top: float = 2.0) -> Path:
    """Gives a run sliders: the default, each reward raised, and each left out."""
    front = folder / "front"
    front.mkdir()
    k, settings = len(names), [[1.0] * len(names)]
    for value in (top, 0.0):
        for i in range(k):
            settings.append([value if j == i else 1.0 for j in range(k)])
    rng = np.random.default_rng(0)
    entries = []
    for n, weights in enumerate(settings):
        files = [f"{n:03d}-{i}.png" for i in range(2)]
        for i, file in enumerate(files):
            shade = rng.integers(60, 200, 3)
            Image.fromarray(np.full((48, 48, 3), shade + 10 * i, dtype=np.uint8)).save(front / file)
        total = sum(weights) / k
        gains = [0.5 + 0.4 * (w - total) for w in weights]
        entries.append({"label": str(n), "weights": weights, "gains": gains, "files": files})
    samples = [{"prompt": p, "source": s} for p, s in (("a red star", "general"), ("TEA", "ocr"))]
    index = {"names": list(names), "top": top, "samples": samples, "settings": entries}
    (front / "index.json").write_text(json.dumps(index))
    return folder
