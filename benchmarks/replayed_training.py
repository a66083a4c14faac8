"""The studio on a GPU by CUDA graphs against the same without: gradients and seconds per step.

    python benchmarks/replayed_training.py --out benchmarks/results/replayed_training.json

`model.compile: auto` records passes of small models (`marble.replay`). Gradients are of one step on
the same pictures, as recorded and as it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marble.recipe import load_recipe
from marble.training import setup
from marble.training.loop import Trainer
from marble.training.processes import Processes


def trainer(choice: str, prompts: int, images: int, device: Processes) -> Trainer:
    size = prompts * images
    recipe = load_recipe(
        "studio",
        [
            "train.precision=fp32",
            "log.trackers=[]",
            f"model.compile={choice}",
            f"data.prompts_per_epoch={prompts}",
            f"data.images_per_prompt={images}",
            f"rollout.batch_size={size}",
            f"train.batch_size={size}",
        ],
    )
    return Trainer(recipe, setup.build(recipe, device.device), device)


def seconds(one: Trainer, epochs: int) -> float:
    """Of an ordinary step with its rollout and rewards, the median."""
    for _ in range(2):
        one.run_epoch()
    found = []
    for _ in range(epochs):
        began = time.perf_counter()
        [row] = one.run_epoch()
        if one.adapter.device.type == "cuda":
            torch.cuda.synchronize()
        if "time/train" in row:  # not a refresh
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def gradient_error(one: Trainer) -> float:
    """Relative, of the recorded passes by the passes themselves."""
    epoch = one.draw(one._sampler().epoch(one.epoch))
    chosen, found = np.arange(epoch.batch.size), {}
    for replays in (True, False):
        one.adapter.replays = replays
        one.gradient(epoch, chosen, 1, 0, on_policy=False)
        found[replays] = torch.cat([p.grad.flatten() for p in one.parameters.values()]).clone()  # type: ignore[union-attr]
    return float((found[True] - found[False]).norm() / found[False].norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--sizes", default="12x8,24x24", help="prompts x pictures of each")
    args = parser.parse_args()
    device = Processes(None)
    gpu = device.device.type == "cuda"
    report: dict[str, Any] = {
        "what": "a step of the studio with and without CUDA graphs",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "versions": {"torch": torch.__version__},
        "steps": {},
    }
    for size in args.sizes.split(","):
        prompts, images = map(int, size.split("x"))
        row: dict[str, Any] = {}
        for choice in ("false", "auto"):
            one = trainer(choice, prompts, images, device)
            row[f"seconds, compile {choice}"] = seconds(one, args.epochs)
            if choice == "auto":
                graphs = one.adapter._graphs
                row["replayed"] = {str(key): found.replayed for key, found in graphs.items()}
                row["gradient error"] = gradient_error(one)
            one.close()
        report["steps"][str(prompts * images)] = row
        print(prompts * images, "pictures:", json.dumps(row))
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
