"""`python -m marble.study.toy RECIPE [k=v …] --out DIR`: `marble train` in the toy world."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console

from marble.data import GroupSampler, Sample, sample_seed
from marble.errors import MarbleError
from marble.recipe import Recipe, load_recipe
from marble.study.toy.model import ToyAdapter
from marble.study.toy.world import prompts
from marble.training.run import train
from marble.training.setup import Parts, add_sliders, build_balancer, build_rewards
from marble.training.teachers import add_teachers

TRAIN_PROMPTS, TEST_PROMPTS = 60, 20


def build(recipe: Recipe, device: torch.device, processes: int = 1) -> Parts:
    """The parts of a run, with the toy's model and prompts and the recipe's everything else."""
    adapter = ToyAdapter(device)
    lora, optim, data = recipe.model.lora, recipe.optim, recipe.data
    adapter.add_lora(lora.rank, lora.alpha, init=lora.init, seed=recipe.train.seed)
    add_sliders(recipe, adapter)
    add_teachers(recipe, adapter)
    optimizer = torch.optim.AdamW(
        list(adapter.lora_parameters().values()),
        lr=optim.lr,
        betas=(optim.betas[0], optim.betas[1]),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
    )
    rewards, heldout = build_rewards(recipe, device)
    starts = [start for start, _ in recipe.stages()] or [0]
    sampler = GroupSampler(
        prompts("train", TRAIN_PROMPTS),
        prompts_per_epoch=data.prompts_per_epoch,
        images_per_prompt=data.images_per_prompt,
        seed=recipe.train.seed,
    )
    return Parts(
        adapter=adapter,
        rewards=rewards,
        heldout=heldout,
        samplers=[(start, sampler) for start in starts],
        eval_samples=_evaluation(recipe),
        probe_samples=[],  # its points are no pictures, whose diversity could be watched
        balancer=build_balancer(recipe, adapter),
        optimizer=optimizer,
    )


def _evaluation(recipe: Recipe) -> list[Sample]:
    each, seed = recipe.eval.images_per_prompt, recipe.eval.seed
    chosen = [prompt for part in prompts("test", TEST_PROMPTS).values() for prompt in part]
    return [
        Sample(chosen[i // each], i // each, sample_seed(seed, i), i)
        for i in range(len(chosen) * each)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m marble.study.toy")
    parser.add_argument("words", nargs="*", metavar="RECIPE | k=v")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # 12 numbers: threads only wait for each other
    try:
        if asked.resume is not None:
            recipe = load_recipe(str(asked.resume / "config.yaml"))
        elif asked.words and asked.out is not None:
            recipe = load_recipe(asked.words[0], asked.words[1:])
        else:
            raise MarbleError("give a recipe and --out, or --resume")
        folder = asked.resume or asked.out
        train(
            recipe,
            folder,
            resume=asked.resume is not None,
            device=asked.device,
            console=Console(quiet=True),
            check=lambda recipe: None,
            build=build,
        )
    except MarbleError as error:
        print(f"marble: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
