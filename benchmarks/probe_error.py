"""What a refresh loses that records only part of its micro-batches: α and the direction.

    python benchmarks/probe_error.py --out benchmarks/results/probe_studio.json

The studio model, a few steps into a run, 24 timesteps per picture as in the recipes of SD3.5. All K
gradients of every micro-batch are taken once; from their inner products follows what any run of
consecutive micro-batches would have solved, without another pass. Compared are

- α of a part against α of the whole step: half the sum of absolute differences;
- the direction that the step then takes, d = Σ c_k g_k with the *whole* step's gradients (the
  others follow with the fresh coefficients): cosine and relative error against the full step's;
- the same between the whole steps of two batches of other pictures: what a solve varies by anyway.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from marble.balance.gradients import Gradients
from marble.harmonise import get_rule
from marble.recipe import load_recipe
from marble.training import setup
from marble.training.loop import Epoch, Trainer
from marble.training.processes import Processes

SETTINGS = [
    "balance.method=marble",  # whole gradients, as published
    "balance.target=full",
    "balance.every=1",
    "data.prompts_per_epoch=6",
    "data.images_per_prompt=8",
    "rollout.batch_size=48",
    "train.batch_size=16",
    "train.probe=0",
    "train.precision=null",
    "train.steps=1000",
]
SHARES = (1 / 72, 1 / 24, 1 / 12, 1 / 8, 1 / 4, 1 / 2)


def blocks(trainer: Trainer, epoch: Epoch) -> np.ndarray:
    """[M, M, K, K]: inner products of the K gradients of M micro-batches of a step."""
    rows: list[torch.Tensor] = []
    honest = Gradients.add

    def kept(gradients: Gradients, *args: Any) -> None:
        store = gradients.jacobian.rows
        store.zero()
        honest(gradients, *args)
        rows.append(store.data[0, : gradients.k].clone())

    with patch.object(Gradients, "add", kept):
        trainer.gradient(epoch, np.arange(len(epoch.samples)), trainer.step, 0, on_policy=False)
    k = len(rows[0])
    flat = torch.cat(rows)
    gram = torch.zeros(len(flat), len(flat), dtype=torch.float64)
    for part in flat.split(1 << 15, dim=1):
        gram += part.double() @ part.double().T
    return gram.numpy().reshape(len(rows), k, len(rows), k).transpose(0, 2, 1, 3)


def solved(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """α and the coefficients of the raw gradients, as the published rule gives them."""
    rule = get_rule("marble")
    alpha = rule(gram).alpha
    return alpha, rule.coefficients(alpha, np.sqrt(np.diagonal(gram)))


def compared(c: np.ndarray, c_full: np.ndarray, gram: np.ndarray) -> tuple[float, float]:
    """Cosine and relative error of two directions in the geometry of the whole step."""
    length, wanted = (float(np.sqrt(x @ gram @ x)) for x in (c, c_full))
    difference = c * wanted / length - c_full  # the optimiser's step hardly depends on length
    return (
        float(c @ gram @ c_full) / (length * wanted),
        float(np.sqrt(max(0.0, difference @ gram @ difference))) / wanted,
    )


def windows(count: int, size: int) -> Iterator[np.ndarray]:
    for start in range(0, count, max(1, size // 2)):
        yield (start + np.arange(size)) % count


def one_seed(seed: int, warm: int) -> dict[str, Any]:
    """Errors by share, of one run."""
    torch.manual_seed(seed)
    short = load_recipe("studio", [*SETTINGS, f"train.seed={seed}", "rollout.steps=10"])
    processes = Processes("cpu")
    trainer = Trainer(short, setup.build(short, processes.device), processes)
    for _ in range(warm):
        trainer.run_epoch()
    # From here on the grid of the published recipe: 25 steps, 24 of them trained on.
    recipe = load_recipe(
        "studio",
        [*SETTINGS, f"train.seed={seed}", "rollout.steps=25", "train.timesteps_fraction=0.99"],
    )
    trainer = Trainer(recipe, trainer.parts, processes)
    trainer.step = trainer.epoch = warm
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for number in range(2):
        gram = blocks(trainer, trainer.draw(trainer._sampler().epoch(warm + number)))
        found.append((gram, *solved(gram.sum((0, 1)))))
    gram, alpha, c = found[0]
    whole = gram.sum((0, 1))
    rows: dict[str, Any] = {}
    for share in SHARES:
        size = max(1, round(share * len(gram)))
        errors = []
        for at in windows(len(gram), size):
            part = gram[np.ix_(at, at)].sum((0, 1))
            if (np.diagonal(part) <= 0).any():
                continue  # a reward that no sample of the part belongs to leaves the solve
            a, own = solved(part)
            errors.append((abs(a - alpha).sum() / 2, *compared(own, c, whole)))
        rows[f"{share:.4f}"] = _row(errors) | {"micro_batches": size}
    other = found[1]
    rows["another batch"] = _row([(abs(other[1] - alpha).sum() / 2, *compared(other[2], c, whole))])
    return rows


def _row(errors: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    names = ("alpha", "cosine", "direction")
    return {name: float(mean(e[i] for e in errors)) for i, name in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=4, help="steps before the one looked at")
    args = parser.parse_args()
    seeds: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        seeds.append(one_seed(seed, args.warm))
        result = about() | {"settings": SETTINGS, "seeds": seeds, "mean": means(seeds)}
        if args.out:  # after every seed: one takes minutes
            args.out.write_text(json.dumps(result, indent=2) + "\n")
    for share, row in means(seeds).items():
        print(f"{share:>14}  {json.dumps({k: round(v, 4) for k, v in row.items()})}")


def about() -> dict[str, Any]:
    return {
        "what": "errors of a refresh that records part of its micro-batches; studio, CPU",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def means(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        share: {key: mean(seed[share][key] for seed in seeds) for key in seeds[0][share]}
        for share in seeds[0]
    }


if __name__ == "__main__":
    main()
