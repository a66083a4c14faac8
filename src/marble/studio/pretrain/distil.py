"""The base draws unguided what its guided teacher draws: flow matching on guided samples.

Reinforcement learning here runs without guidance, as DiffusionNFT does, and a small model without
guidance is blurry. The teacher samples with classifier-free guidance,

    v* = v(x, c) + (w − 1) · [v(x, c) − v(x, ∅)],

and the student learns its pictures by flow matching. Learning v* itself would be quicker, but leads
to a model whose velocity is not the mean velocity of its own pictures, v(x_t) ≠ E[ε − x_0 | x_t].
DiffusionNFT pushes v towards ε − x_0 of good samples and away from that of bad ones; such a bias b
enters its gradient as −Cov(A, b) and takes the guidance out again just where the pictures are good.

    python -m marble.studio.pretrain.distil --from build/studio/trained --out build/studio/pipeline
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from ..world import vocabulary
from ..world.prompts import random_prompt
from .common import autocast
from .flow import train_generator
from .generator import Generator, schedule, tokenize
from .pipeline import save_pipeline
from .tokenizer import build_tokenizer

#: w by source: signs, whose letters a model learns last, get the most; objects little, so that
#: headroom is left.
GUIDES = {"ocr": 3.0, "geneval": 1.8, "general": 2.5}
SHARES = {"ocr": 0.4, "geneval": 0.4, "general": 0.2}
STEPS = 25  # of the teacher, more than the base will take
PEAK_LR = 1e-3
KEPT = 0.6  # of the weights before; the student alone spells and counts too well to leave headroom


@torch.no_grad()
def guided(
    teacher: Generator, x: Tensor, sigma: Tensor, ids: Tensor, empty: Tensor, strength: Tensor
) -> Tensor:
    """v* of the module's docstring; `strength` [n] holds w of each sample."""
    with autocast(x.device):
        v = teacher(x, sigma, ids).float()
        unconditional = teacher(x, sigma, empty.expand_as(ids)).float()
    return v + (strength.view(-1, 1, 1, 1) - 1) * (v - unconditional)


@torch.no_grad()
def guided_samples(
    teacher: Generator,
    tokenizer: Any,
    count: int,
    device: torch.device,
    guides: Mapping[str, float] = GUIDES,
    *,
    seed: int = 1,
    steps: int = STEPS,
    batch: int = 2048,
) -> tuple[Tensor, Tensor]:
    """Latents that the guided teacher draws for random training prompts, and the prompts' ids."""
    rng = np.random.default_rng(seed)
    sources = [source for source, share in SHARES.items() for _ in range(round(count * share))]
    prompts = [random_prompt(source, rng)["prompt"] for source in sources]
    ids, empty = tokenize(tokenizer, prompts).to(device), tokenize(tokenizer, [""]).to(device)
    strengths = torch.tensor([guides[source] for source in sources], device=device)
    sigmas = schedule(steps).to(device)
    generator = torch.Generator("cpu").manual_seed(seed)
    parts = []
    for part, strength in zip(ids.split(batch), strengths.split(batch)):
        x = torch.randn(len(part), 16, 8, 8, generator=generator).to(device)
        for now, after in pairwise(sigmas):
            sigma = now.expand(len(part))
            x = x + (after - now) * guided(teacher, x, sigma, part, empty, strength)
        parts.append(x)
    return torch.cat(parts), ids


def distil(
    model: Generator,
    tokenizer: Any,
    device: torch.device,
    seconds: float,
    *,
    samples: int,
    batch: int,
    guides: Mapping[str, float] = GUIDES,
) -> Generator:
    """Trains `model` on what it draws under guidance as it is now, and keeps a share of that."""
    teacher = copy.deepcopy(model).to(device).eval()
    latents, ids = guided_samples(teacher, tokenizer, samples, device, guides)
    print(f"distil: {len(latents)} samples drawn", flush=True)
    student = train_generator(
        latents,
        ids,
        tokenize(tokenizer, [""]),
        len(tokenizer),
        device,
        seconds,
        batch=batch,
        peak_lr=PEAK_LR,
        start=model,
    )
    return keep(student, teacher)


@torch.no_grad()
def keep(student: Generator, teacher: Generator, share: float = KEPT) -> Generator:
    """Mixes some of the teacher's weights into the student."""
    for new, old in zip(student.parameters(), teacher.parameters(), strict=True):
        new.lerp_(old, share)
    return student


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m marble.studio.pretrain.distil")
    parser.add_argument("--from", dest="start", type=Path, required=True, help="the teacher")
    parser.add_argument("--out", type=Path, required=True, help="where the student goes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=75_000)
    parser.add_argument("--seconds", type=float, default=125)
    parser.add_argument("--batch", type=int, default=1024)
    for source, w in GUIDES.items():
        parser.add_argument(f"--{source}", type=float, metavar="W", default=w)
    parser.add_argument("--shift", type=float, default=1.0, help="of the flow-match scheduler")
    args = parser.parse_args()
    if not (args.start / "vae").is_dir():
        parser.error(f"--from {args.start}: no pipeline there; `make studio` writes one")
    torch.manual_seed(0)
    device, started = torch.device(args.device), time.perf_counter()
    words = vocabulary()
    tokenizer = build_tokenizer(words)
    teacher = Generator(len(tokenizer), eos=1)
    teacher.load_parts(args.start)
    vae: Any = AutoencoderKL.from_pretrained(args.start / "vae").float().to(device).eval()
    model = distil(
        teacher,
        tokenizer,
        device,
        args.seconds,
        samples=args.samples,
        batch=args.batch,
        guides={source: getattr(args, source) for source in GUIDES},
    )
    save_pipeline(args.out, model, vae, words, shift=args.shift)
    print(f"distilled after {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
