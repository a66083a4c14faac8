"""The front of a steerable training against its rivals', from the runs of studies/steer.yaml.

    marble study studies/steer.yaml --keep --jobs 16 --device cuda
    python scripts/steer_front.py runs/study-steer --distil 40 --jobs 8 --device cuda

--distil STEPS first trains, per seed, a student of so many steps on the specialists of the study
(objective distil). Its teachers are as old as lets all of them and the student draw as many
pictures together as one steered run: 5 × 24 + 40 = 160 steps.

Every policy draws the same held-out prompts with the same seeds. Gains are in standard deviations
of the base's scores. Writes front.json and front.md into the study's folder after every policy that
is done. A second call goes on where the first one ended: students resume, and settings that were
measured (front/*) are not repeated. --with FRONT.JSON adds the seeds that another machine measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from steer_students import SHAPE, distil

BLOCK = re.compile(r"(<!-- steer front -->\n).*?(<!-- end of front -->)", re.DOTALL)
LINE = 5
"""Settings of a slider, evenly over its range."""
PICTURES = 8
"""Of each prompt: with 2, noise decided the order along a slider that moves its reward by 0.1 σ."""


@dataclass(frozen=True)
class Task:
    """The policies of one run (or, for a soup, of five) at a grid of preferences."""

    name: str
    cell: str
    seed: int
    runs: tuple[str, ...]


def tasks_of(folder: Path) -> list[Task]:
    """One per finished steer run, reference run and seed's soup; and the base, once."""
    from marble.study.runner import finished

    found: list[Task] = []
    soups: dict[int, list[str]] = {}
    for path in sorted(folder.iterdir()):
        match = SHAPE.fullmatch(path.name)
        if match is None or not (path / "checkpoints").is_dir() or not finished(path):
            continue
        cell, seed = match["cell"], int(match["seed"])
        if cell.startswith("only-"):
            soups.setdefault(seed, []).append(str(path))
        else:
            found.append(Task(path.name, cell, seed, (str(path),)))
    found += [Task(f"soup-seed{s}", "soup", s, tuple(runs)) for s, runs in soups.items()]
    if not found:
        raise SystemExit(f"{folder}: no runs with checkpoints; was the study run with --keep?")
    return [Task("base", "base", 0, found[0].runs[:1]), *found]


# -- pictures and scores ---------------------------------------------------------------------------


def grid_of(task: Task, names: list[str], sliders: Any) -> dict[str, list[float] | None]:
    """Label → slider weights (or weights of the specialists); None: the policy as it is."""
    from marble.models.sliders import Sliders
    from marble.training import front

    if task.cell == "soup":
        like = Sliders(tuple(names), 1, 1, 2.0)
        k = len(names)
        pure = {f"only {n}": [k * float(i == j) for j in range(k)] for i, n in enumerate(names)}
        pairs = {
            f"only {a} + {b}": ((np.array(pure[f"only {a}"]) + pure[f"only {b}"]) / 2).tolist()
            for a, b in combinations(names, 2)
        }
        return {**front.corners(like), **front.mixtures(like), **pure, **pairs}
    if sliders is None:
        return {"default": None}
    lines = {
        f"{name} = {weights[sliders.names.index(name)]:g}": weights
        for name in names
        for weights in front.line(sliders, name, LINE)
    }
    return {**front.corners(sliders), **front.mixtures(sliders), **lines}


def evaluate(task: Task, out: Path, device: str | None, words: list[str]) -> None:
    """Draws and scores the task's grid into `out`."""
    import torch

    from marble.evaluation.drift import diversity
    from marble.models import lora
    from marble.models.sliders import Sliders
    from marble.models.soups import merged
    from marble.recipe import load_recipe
    from marble.training.checkpoint import newest_complete
    from marble.training.evaluate import evaluate_policy
    from marble.training.processes import Processes

    recipe = load_recipe(str(Path(task.runs[0]) / "config.yaml"), words)
    names, processes = recipe.rewards.names, Processes(device)
    adapter, rewards, samples = parts(recipe, processes.device)
    folders = [newest_complete(Path(run) / "checkpoints")[0] / "lora" for run in task.runs]
    read = [lora.read_file(folder) for folder in folders]
    sliders = Sliders.read(folders[0]) if len(folders) == 1 else None
    order = [names.index(load_recipe(f"{run}/config.yaml").balance.reward or names[0]) for run in
             task.runs]  # fmt: skip
    rank = sum(config["r"] for _, config in read)
    scale = read[0][1]["lora_alpha"] / read[0][1]["r"]
    adapter.add_lora(rank, scale * rank, targets=read[0][1]["target_modules"])
    partial = out / f"{task.name}.part"
    points = json.loads(partial.read_text()) if partial.is_file() else []
    for label, weights in grid_of(task, names, sliders).items():
        if any(point["label"] == label for point in points):
            continue
        same = [point for point in points if weights is not None and point["weights"] == weights]
        if same:  # every slider's line goes through the default
            points.append({**same[0], "label": label})
            continue
        if task.cell == "soup":
            assert weights is not None
            # Shares, not all to be left out: the adapter's rank is that of all together.
            shares = [max(weights[k] / len(names), 1e-9) for k in order]
            state, _ = merged([(*one, w) for one, w in zip(read, shares)])
        else:
            state = read[0][0] if weights is None else sliders.at(read[0][0], weights)
        policy = "base" if task.cell == "base" else "default"
        with adapter.swapped(state):
            found = evaluate_policy(adapter, rewards, samples, recipe, processes, policy=policy)
        spread = diversity(found.images.numpy(), [s.group for s in samples])
        points.append(
            {
                "label": label,
                "weights": weights,
                "scores": {name: np.round(s, 6).tolist() for name, s in found.scores.items()},
                "diversity": float(np.nanmean(spread)),
            }
        )
        _write(partial, points)
        if task.cell == "base":
            break
    torch.cuda.empty_cache()
    record = {**vars(task), "names": names, "range": sliders and sliders.top, "points": points}
    _write(out / f"{task.name}.json", record)
    partial.unlink()


def _write(path: Path, value: Any) -> None:
    """Whole or not at all: a call that is cut off leaves what was there before."""
    staged = path.with_name(f"{path.name}.new")
    staged.write_text(json.dumps(value))
    os.replace(staged, path)


def parts(recipe: Any, device: Any) -> tuple[Any, list[Any], list[Any]]:
    """Model without LoRA, rewards (also those only measured) and held-out samples."""
    from marble.models.build import build_adapter
    from marble.training.setup import build_rewards, evaluation_samples

    if recipe.model.path == "toy":
        from marble.study.toy.__main__ import _evaluation
        from marble.study.toy.model import ToyAdapter

        return ToyAdapter(device), list(build_rewards(recipe, device)), _evaluation(recipe)
    adapter = build_adapter(recipe, device)
    return adapter, list(build_rewards(recipe, device)), evaluation_samples(recipe)


# -- the table ------------------------------------------------------------------------------------


def gains_of(point: dict[str, Any], base: dict[str, Any], names: list[str]) -> np.ndarray:
    from marble.evaluation import relative_gains

    if not names:
        return np.zeros(0)
    now, then = (np.array([p["scores"][n] for n in names], dtype=float) for p in (point, base))
    return relative_gains(now, then)


def summary(folder: Path, others: Sequence[Path] = ()) -> dict[str, Any]:
    """The numbers of the table, per seed and over seeds."""
    records = {p.stem: json.loads(p.read_text()) for p in sorted((folder / "front").glob("*.json"))}
    base = records.pop("base")["points"][0]
    first = next(iter(records.values()))
    names = first["names"]
    heldout = [n for n in base["scores"] if n not in names]
    seeds = sorted({r["seed"] for r in records.values()})
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        own = {r["cell"]: r for r in records.values() if r["seed"] == seed}
        rows += [_front(cell, seed, r, base, names, heldout) for cell, r in own.items()
                 if cell.startswith("steer") or cell in ("soup", "marble", "distil")]  # fmt: skip
        towards = [r for cell, r in own.items() if cell.startswith("towards-")]
        asked = {p.name for p in folder.glob(f"towards-*-seed{seed}") if p.is_dir()}
        if towards and asked <= set(records):  # of fewer, a front would be another one
            points = [r["points"][0] | {"label": r["cell"]} for r in towards]
            joined = {"points": points, "range": None}
            rows.append(_front("retrained", seed, joined, base, names, heldout))
    found = {"rewards": names, "heldout": heldout, "pictures": len(base["scores"][names[0]])}
    for path in others:
        there = json.loads(path.read_text())
        if {key: there[key] for key in found} != found:
            raise SystemExit(f"{path}: other rewards, or other held-out pictures")
        new = sorted(set(there["seeds"]) - set(seeds))
        seeds += new
        rows += [row for row in there["fronts"] if row["seed"] in new]
    return {**found, "seeds": sorted(seeds), "fronts": rows}


def _front(
    cell: str,
    seed: int,
    record: dict[str, Any],
    base: dict[str, Any],
    names: list[str],
    heldout: list[str],
) -> dict[str, Any]:
    from scipy.stats import spearmanr

    from marble.evaluation import hypervolume

    table = {p["label"]: gains_of(p, base, names) for p in record["points"]}
    away = {p["label"]: gains_of(p, base, heldout) for p in record["points"]}
    spread = {p["label"]: p["diversity"] / base["diversity"] for p in record["points"]}
    points = np.array(list(table.values()))
    few = np.array([g for label, g in table.items() if label in names] or points)
    sliders = {}
    if record["range"]:
        for k, name in enumerate(names):
            at = np.linspace(0.0, record["range"], LINE)
            gains = [float(table[f"{name} = {value:g}"][k]) for value in at]
            # A slider that moves nothing at all has no order: 0.
            rho = float(spearmanr(at, gains)[0]) if np.ptp(gains) > 0 else 0.0
            sliders[name] = {"at": at.tolist(), "gain": gains, "rho": rho}
    zero, low = np.zeros(len(names)), -np.ones(len(names))
    default = table.get("default")
    return {
        "cell": cell,
        "seed": seed,
        "points": {label: gains.tolist() for label, gains in table.items()},
        "heldout": {label: gains.tolist() for label, gains in away.items()},
        "diversity": spread,
        "hypervolume": hypervolume(points, zero).value,
        "hypervolume_low": hypervolume(points, low).value,
        "hypervolume_five": hypervolume(few, zero).value,
        "hypervolume_five_low": hypervolume(few, low).value,
        "default": None if default is None else {"worst": default.min(), "mean": default.mean()},
        "sliders": sliders,
        "least_diversity": min(spread.values()),
        "least_heldout": {
            name: min(gains[i] for gains in away.values()) for i, name in enumerate(heldout)
        },
    }


def markdown(found: dict[str, Any], *, whole: bool = True) -> str:
    """Fronts, then what each slider does; `whole`: and all scores of every setting."""
    cells = list(dict.fromkeys(row["cell"] for row in found["fronts"]))
    by = {c: [r for r in found["fronts"] if r["cell"] == c] for c in cells}

    def mean(values: list[float]) -> str:
        spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        return f"{np.mean(values):.3f}{spread}"

    lines = [
        f"Seeds {', '.join(map(str, found['seeds']))}; mean ± standard deviation over seeds. "
        "Gains in standard deviations of the base's scores. Hypervolume: of all settings measured, "
        "and of the five corners alone, above the base, and above 1 σ below the base.",
        "",
        "| front | settings | hypervolume | five corners | from −1 σ | five, from −1 σ "
        "| worst, default | mean, default | least diversity |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, rows in by.items():
        default = [r["default"] for r in rows if r["default"]]
        keys = ("hypervolume", "hypervolume_five", "hypervolume_low", "hypervolume_five_low")
        shown = [mean([r[key] for r in rows]) for key in keys]
        shown += [mean([d[k] for d in default]) if default else "–" for k in ("worst", "mean")]
        shown.append(mean([r["least_diversity"] for r in rows]))
        lines.append(f"| {cell} | {len(rows[0]['points'])} | " + " | ".join(shown) + " |")
    for cell, rows in by.items():
        if not rows[0]["sliders"]:
            continue
        at = rows[0]["sliders"][found["rewards"][0]]["at"]
        lines += ["", f"`{cell}`: a reward's own gain over its slider's range, others at 1.", ""]
        lines += ["| slider | " + " | ".join(f"{v:g}" for v in at) + " | Spearman, by seed |"]
        lines += ["|---|" + "---|" * (len(at) + 1)]
        for name in found["rewards"]:
            own = [r["sliders"][name] for r in rows]
            gains = np.mean([one["gain"] for one in own], axis=0)
            rho = ", ".join(f"{one['rho']:.2f}" for one in own)
            lines.append(f"| {name} | " + " | ".join(f"{g:+.2f}" for g in gains) + f" | {rho} |")
    if not whole:
        return "\n".join(lines) + "\n"
    columns = [*found["rewards"], *found["heldout"], "diversity"]
    lines += ["", "| front, setting | " + " | ".join(columns) + " |"]
    lines += ["|---|" + "---|" * len(columns)]
    for cell, rows in by.items():
        for label in rows[0]["points"]:
            if " = " in label or " + " in label:
                continue
            own = np.mean([r["points"][label] + r["heldout"][label] for r in rows], axis=0)
            spread = np.mean([r["diversity"][label] for r in rows])
            told = " | ".join(f"{g:+.2f}" for g in own)
            lines.append(f"| {cell}, {label} | {told} | {spread:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*", help="of the recipe, e.g. eval.prompts=16")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--distil", type=int, metavar="STEPS", help="train students of STEPS first")
    parser.add_argument(
        "--with",
        type=Path,
        dest="others",
        action="append",
        default=[],
        metavar="FRONT.JSON",
        help="seeds measured elsewhere; may be repeated",
    )
    parser.add_argument("--docs", type=Path, help="write the result into this page's block")
    asked = parser.parse_intermixed_args()
    words = ["eval.prompts=64", f"eval.images_per_prompt={PICTURES}", *asked.overrides]
    out = asked.folder / "front"
    out.mkdir(exist_ok=True)
    wrong: list[str] = []
    if asked.distil is not None:
        wrong += distil(asked.folder, asked.distil, asked.jobs, asked.device)
    todo = [t for t in tasks_of(asked.folder) if not (out / f"{t.name}.json").is_file()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=context) as pool:
        jobs = {pool.submit(evaluate, task, out, asked.device, words): task for task in todo}
        for job in as_completed(jobs):
            error = job.exception()
            if error is not None:
                wrong.append(f"{jobs[job].name}: {error!r}")
                continue
            print(f"done {jobs[job].name}", flush=True)
            tell(asked.folder, asked.others)
    found = tell(asked.folder, asked.others)
    if asked.docs is not None and found is not None:
        page, block = asked.docs.read_text(), markdown(found, whole=False)
        asked.docs.write_text(BLOCK.sub(lambda m: f"{m[1]}{block}{m[2]}", page, count=1))
    print(markdown(found) if found else "nothing to compare yet")
    if wrong:
        raise SystemExit("not done:\n" + "\n".join(wrong))


def tell(folder: Path, others: Sequence[Path] = ()) -> dict[str, Any] | None:
    """front.json and front.md of what is done so far; None until base and a front are."""
    done = {path.stem for path in (folder / "front").glob("*.json")}
    if "base" not in done or len(done) < 2:
        return None
    found = summary(folder, others)
    _write(folder / "front.json", found)
    (folder / "front.md").write_text(markdown(found))
    return found


if __name__ == "__main__":
    main()
