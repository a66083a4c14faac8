"""Makes a guided model true to itself: flow matching on the pictures that it draws.

`refine` gives velocities that lead to better pictures but are not the mean velocity *of* those
pictures: v(x_t) ≠ E[ε − x_0 | x_t] over the model's own x_0. DiffusionNFT pushes v towards ε − x_0
of good samples and away from that of bad ones, so such a bias b enters its gradient as −Cov(A, b):
it takes the guidance out again just where the pictures are good. A short flow matching on own
samples lessens b and keeps the pictures.

    python -m marble.studio.pretrain.settle --from build/refined --out build/settled
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from ..world import vocabulary
from ..world.prompts import random_prompt
from .generator import Generator, sample_latents, train_generator
from .pipeline import save_pipeline
from .refine import SHARES, tokenize
from .tokenizer import build_tokenizer

PEAK_LR = 3e-4
KEPT = 0.2  # of the weights as they were before; a little of the guidance stays


def own_samples(
    model: Generator, tokenizer: Any, count: int, device: torch.device, seed: int
) -> tuple[Tensor, Tensor]:
    """Latents that the model draws for random training prompts, and the prompts' token ids."""
    rng = np.random.default_rng(seed)
    prompts = [
        random_prompt(source, rng)["prompt"]
        for source, share in SHARES.items()
        for _ in range(round(count * share))
    ]
    ids = tokenize(tokenizer, prompts).to(device)
    return sample_latents(model, ids, seed), ids


def settle(
    model: Generator,
    tokenizer: Any,
    device: torch.device,
    seconds: float,
    *,
    samples: int,
    batch: int,
    seed: int = 1,
) -> Generator:
    """Trains `model` on `samples` pictures of its own, and keeps a share of what it was."""
    before = copy.deepcopy(model.to(device).eval())
    latents, ids = own_samples(before, tokenizer, samples, device, seed)
    print(f"settle: {len(latents)} samples drawn", flush=True)
    empty = tokenize(tokenizer, [""])
    model, _ = train_generator(
        latents,
        ids,
        empty,
        len(tokenizer),
        device,
        seconds,
        batch=batch,
        peak_lr=PEAK_LR,
        start=model,
    )
    return keep(model, before)


@torch.no_grad()
def keep(model: Generator, before: Generator, share: float = KEPT) -> Generator:
    """Mixes some of the weights from before into the settled model."""
    for now, old in zip(model.parameters(), before.parameters(), strict=True):
        now.lerp_(old.to(now.device), share)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m marble.studio.pretrain.settle")
    parser.add_argument("--from", dest="start", type=Path, required=True, help="pipeline folder")
    parser.add_argument("--out", type=Path, required=True, help="where the settled one goes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device, started = torch.device(args.device), time.perf_counter()
    words = vocabulary()
    tokenizer = build_tokenizer(words)
    model = Generator(len(tokenizer), eos=1)
    model.load_parts(args.start)
    vae: Any = AutoencoderKL.from_pretrained(args.start / "vae").float().to(device).eval()
    model = settle(
        model,
        tokenizer,
        device,
        args.seconds,
        samples=args.samples,
        batch=args.batch,
        seed=args.seed,
    )
    save_pipeline(args.out, model, vae, words, shift=1.0)
    print(f"settled after {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
