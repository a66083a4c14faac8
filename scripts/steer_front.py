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

    python scripts/steer_front.py runs/study-steer --store studies/results/steer.json
    python scripts/steer_front.py studies/results/steer.json --docs docs/steer.md

--store keeps the numbers and, as a page beside them, all tables; --docs writes the shorter tables
into a page. A file in place of the folder is only tabulated. Where all is measured, checkpoints are
not needed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from steer_students import SHAPE, distil
from steer_table import LINE, markdown, publish, store, summary

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
    """One per finished steer run, reference run and seed's soup, and the base: those that are not
    measured yet."""
    from marble.study.runner import finished

    done = measured(folder)
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
    if not found and len(done) < 2:
        raise SystemExit(f"{folder}: no runs with checkpoints; was the study run with --keep?")
    base = [Task("base", "base", 0, one.runs[:1]) for one in found[:1]]
    return [task for task in base + found if task.name not in done]


def measured(folder: Path) -> set[str]:
    """Names of the runs and soups whose pictures have been scored, and `base`."""
    return {path.stem for path in (folder / "front").glob("*.json")}


def left_out(folder: Path) -> list[str]:
    """Runs of the study that the tables have nothing of: not finished, or without checkpoints."""
    runs = {path.name for path in folder.iterdir() if path.is_dir() and SHAPE.fullmatch(path.name)}
    return sorted(run for run in runs - measured(folder) if not run.startswith("only-"))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="the study's runs, or a FRONT.JSON")
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
    parser.add_argument(
        "--store", type=Path, metavar="JSON", help="write the numbers there, the tables beside them"
    )
    parser.add_argument("--docs", type=Path, help="write the result into this page's block")
    asked = parser.parse_intermixed_args()
    if not asked.folder.exists():
        how = "`marble study studies/steer.yaml --keep` makes it"
        raise SystemExit(f"{asked.folder}: no such folder; {how}")
    if asked.folder.is_file():
        found, wrong = stored(asked.folder), []
    else:
        found, wrong = measure(asked)
    if found is not None and asked.store is not None:
        store(found, asked.store)
    if found is not None and asked.docs is not None:
        publish(found, asked.docs)
    print(markdown(found) if found else "nothing to compare yet")
    if wrong:
        raise SystemExit("not done:\n" + "\n".join(wrong))


def stored(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
        return {**found, "fronts": list(found["fronts"])}
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{file}: not a FRONT.JSON, as --store writes it") from None


def measure(asked: argparse.Namespace) -> tuple[dict[str, Any] | None, list[str]]:
    """What the study's folder holds once all that can be measured is; and what went wrong."""
    from marble.study.sharing import shared_gpu

    with shared_gpu(asked.jobs, asked.device, print) as places:
        os.environ.update(places)  # of the processes that begin from here on
        return _measure(asked)


def _measure(asked: argparse.Namespace) -> tuple[dict[str, Any] | None, list[str]]:
    words = ["eval.prompts=64", f"eval.images_per_prompt={PICTURES}", *asked.overrides]
    out = asked.folder / "front"
    out.mkdir(exist_ok=True)
    wrong: list[str] = []
    if asked.distil is not None:
        wrong += distil(asked.folder, asked.distil, asked.jobs, asked.device)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=context) as pool:
        todo = tasks_of(asked.folder)
        jobs = {pool.submit(evaluate, task, out, asked.device, words): task for task in todo}
        for job in as_completed(jobs):
            error = job.exception()
            if error is not None:
                wrong.append(f"{jobs[job].name}: {error!r}")
                continue
            print(f"done {jobs[job].name}", flush=True)
            tell(asked.folder, asked.others)
    found = tell(asked.folder, asked.others)
    absent = left_out(asked.folder)
    if found is not None and absent:
        print(f"not in the tables, since not measured: {', '.join(absent)}")
    return found, wrong


def tell(folder: Path, others: Sequence[Path] = ()) -> dict[str, Any] | None:
    """front.json and front.md of what is done so far; None until base and a front are."""
    done = measured(folder)
    if "base" not in done or len(done) < 2:
        return None
    found = summary(folder, others)
    _write(folder / "front.json", found)
    (folder / "front.md").write_text(markdown(found))
    return found


if __name__ == "__main__":
    main()
